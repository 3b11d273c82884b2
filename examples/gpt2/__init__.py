"""A small language model of GPT-2's kind, trained on a simulated wafer-scale appliance. Start reading at ``run.py``."""
