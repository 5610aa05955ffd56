"""Runs, skills and gates made elsewhere: one module a format, read and written without loss."""
