"""Train the language model: ``python run.py CSX --params configs/params_gpt2_small.yaml --num_csx 1 --mode train``."""

from data import Text
from model import GPT2

from moorings.appliance import run

if __name__ == "__main__":
    run(GPT2, train=Text, eval=Text)
