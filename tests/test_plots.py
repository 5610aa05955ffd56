import pytest
from conftest import GateWriter
from matplotlib import pyplot as plt
from matplotlib.cbook import is_math_text

from shopskill_lib import plots
from shopskill_lib.gates import fit_gate, read_observations

ODD = ("cost_$5_or_$x^2$", "_hidden", r"back\$slash\q", "50% {off}")


def test_ids_are_drawn_as_they_are_and_never_as_formulas(gate_csv: GateWriter) -> None:
    """An odd `{` between dollars would stop the drawing; `_` and `^` would vanish."""
    figure = plots.coefficients(fit_gate(read_observations(gate_csv(factors=(*ODD, "a$_{b$"))), resamples=100))
    figure.canvas.draw()
    drawn = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert len(drawn) == 5
    assert not any(map(is_math_text, drawn))
    plt.close(figure)


@pytest.mark.parametrize(("name", "printed"), [("核对", "factor #3"), ("a" * 40, "a" * 31 + "..."), ("a_b", "a_b")])
def test_labels_are_short_and_ascii(name: str, printed: str) -> None:
    assert plots.label(name, 3) == printed
