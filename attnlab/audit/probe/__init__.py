"""Instruments: what runs a subject, measures influence, and watches attention at work."""
