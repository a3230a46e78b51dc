"""Times every candidate of every layer on a GPU and chooses: verified first, measured in turns, written as a tune file.

The law: tuning changes speed, never results. What differs between batch sizes of one layer gives the same bytes.
"""
