"""Valid input, damaged: bytes flipped, lost, doubled and moved, and words of the language put where they do not belong.

Random text hardly ever gets past a parser's first line; this does, and Hypothesis makes the damage small again.
"""

from collections.abc import Sequence

from hypothesis import strategies as st


@st.composite
def mutations(draw: st.DrawFn, corpus: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """One of ``corpus`` after a few accidents; ``words`` are what is put in."""
    data = bytearray(draw(st.sampled_from(corpus)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        upto = min(len(data), at + draw(st.sampled_from([1, 1, 2, 8, 64])))
        match draw(st.sampled_from(["flip", "cut", "double", "word", "byte", "end", "splice"])):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:upto]
            case "double":
                data[at:at] = data[at:upto] * draw(st.sampled_from([1, 2, 30]))
            case "word":
                data[at:at] = draw(st.sampled_from(words))
            case "byte":
                data[at:upto] = draw(st.binary(min_size=1, max_size=4))
            case "end":
                del data[at:]
            case _:  # splice
                other = draw(st.sampled_from(corpus))
                data[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(data)


def texts(corpus: Sequence[str], words: Sequence[str]) -> st.SearchStrategy[str]:
    """The same for text; what is no UTF-8 any more is replaced."""
    found = mutations([text.encode() for text in corpus], [word.encode() for word in words])
    return found.map(lambda data: data.decode("utf-8", "replace"))
