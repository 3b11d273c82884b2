"""What is said about an image before the job is queued."""

import pytest

from moorings.core.model.errors import MooringsError
from moorings.submission.container_images import fetch_image


def test_a_missing_image_file_is_named_before_any_runtime_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    image = tmp_path / "missing.sif"
    with pytest.raises(MooringsError, match=f"there is no image file {image}") as caught:
        fetch_image(str(image), {}, pytest.fail)
    assert caught.value.code == "container.no_image"
    image.touch()
    with pytest.raises(MooringsError) as caught:
        fetch_image(str(image), {}, pytest.fail)
    assert caught.value.code == "container.no_runtime"
