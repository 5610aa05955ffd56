"""shopskill: measure which paragraphs of an agent skill help, by how much, and how surely.

This file imports nothing, so that every module can be imported alone.
"""
