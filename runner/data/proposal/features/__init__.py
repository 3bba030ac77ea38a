"""Features that are proposed, as they tell of the label on rows held out."""
