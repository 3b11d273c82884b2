"""A small network that learns handwritten digits, on one process for each GCD of a partition.

Start reading at `train.py`; it alone joins the others, which know nothing of each other:
`devices` (is this GCD really mine?), `rendezvous` (many processes, one sum), `model` (the maths),
`data` (the digits, and who gets which), `checkpoint` (whole files or none).
Not here: sweeps, tracking, a real accelerator's compiler. The arithmetic is NumPy's, on the CPU.
"""
