"""Jobs: from a document to a checked plan, and from one plan to the next."""
