"""The command line: flags, verbs, and what each verb does."""
