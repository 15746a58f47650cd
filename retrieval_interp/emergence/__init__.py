"""When attention paths appear in training (paper, section 9 and appendix D)."""
