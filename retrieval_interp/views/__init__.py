"""What people look at: tables, sentences, HTML pages, and their parts.

A view takes data that was measured; it measures nothing itself.
"""
