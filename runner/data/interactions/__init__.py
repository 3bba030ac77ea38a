"""Raw interactions of users with items: their histories, and the protocols that split them."""
