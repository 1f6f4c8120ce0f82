"""Rotary positions and shared key/value heads: quality and cost (CMU 10-423/623, homework 1)"""
