"""What is examined: one file a property, registered under "property"."""
