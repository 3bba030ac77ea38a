"""What models that find items in a catalogue share: queries, candidates and negatives."""
