"""Tasks in words for language models; `text_task` has what they have in common."""
