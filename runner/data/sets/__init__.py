"""Ready data sets: public ones that are read from their original files, and synthetic rows."""
