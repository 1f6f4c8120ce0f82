"""A failure at its smallest, and a script that shows it without this package."""
