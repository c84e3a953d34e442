"""The systems of one comparison, ours and its peers, behind one small interface."""
