"""Raw interactions of users with items: histories, and the protocols that split them."""
