"""What is examined: one class a property, registered under "property"."""
