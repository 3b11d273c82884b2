"""What projects are entitled to: where their guaranteed blocks lie, which limit they reach, which borrower must yield.

Start reading at ``guarantee_map``.
"""
