"""What people look at: tables, sentences, HTML pages, and their parts.

A view takes data that was measured; itself it measures nothing but the attention that it shows.
"""
