"""Reports: plain data of what was found, written as one HTML page, as Markdown and as JSON."""
