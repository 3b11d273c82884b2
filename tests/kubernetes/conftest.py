"""A real Kubernetes for the tests of this folder; each says what it needs by its fixtures.

``cluster``: a control plane, kept for the whole session; what a test leaves in it is taken away. ``node_cluster``:
another one with a node, on which Pods run. A test works in ``namespace``, or makes more with ``make_namespace``; it may
kill and stop what it likes, which is started again afterwards. Who needs other flags or more nodes makes a cluster for
a module, and marks that ``pytestmark = pytest.mark.kubernetes``::

    @pytest.fixture(scope="module")
    def own() -> Iterator[KubernetesCluster]:
        with KubernetesCluster(new_folder(), api_flags=["--max-requests-inflight=10"]) as cluster:
            yield cluster

``kube`` says what they are: 1.20, or ``today``: the server of definitions and the kubectl of Debian sid on a cluster of
1.20 (``crd_server``). ``pytest tests/kubernetes --kube=today`` runs the tests on that, but for those marked ``of_1_20``
or ``whole``; ``--kube=both``, as ``make test-all`` does, those of ``_ON_BOTH`` on both and the rest on 1.20;
``--kube=turn``, as ``make test`` does, those on one of the two, drawn by the tree. Where today's cannot be had, the
last two run all on 1.20 and say why. With ``KUBEBUILDER_ASSETS`` all run on what lies there, but for those marked
``of_1_20``.

Every test here is marked ``kubernetes``, and one process of pytest runs them all (``tests.lanes``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests import sampling
from tests.kubernetes import images, programs
from tests.kubernetes.cluster import KubernetesCluster, new_folder
from tests.kubernetes.crd_server import CrdServer
from tests.kubernetes.laws import Watcher, lawful
from tests.kubernetes.site import CRD, Site, ipu_site

_FOLDER = Path(__file__).parent
_TIMEOUT_S = 600
_OLD, _TODAY = "1.20", "today"
_ON_BOTH = {"test_crd", "test_operator"}  # what depends most on how definitions are served
_ASKED = pytest.StashKey[Sequence[str]]()
_NOTE = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    choices = [_OLD, _TODAY, "both", "turn"]
    parser.addoption("--kube", choices=choices, default=_OLD, help="the Kubernetes for tests/kubernetes")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kube" in metafunc.fixturenames:
        asked = _choose(metafunc.config)
        everywhere = metafunc.config.getoption("--kube", default=_OLD) == _TODAY
        marked = any(metafunc.definition.get_closest_marker(name) for name in ("of_1_20", "whole"))
        fits = everywhere or metafunc.module.__name__.rpartition(".")[2] in _ON_BOTH
        chosen = asked if fits and not marked else [_OLD]
        ids = [pytest.HIDDEN_PARAM if one == _OLD else one for one in chosen]
        metafunc.parametrize("kube", chosen, ids=ids, indirect=True, scope="session")


def _choose(config: pytest.Config) -> Sequence[str]:
    """What the tests of ``_ON_BOTH`` run on, and what is said of it at the end; decided once, for the build is long."""
    if _ASKED not in config.stash:
        asked = config.getoption("--kube", default=_OLD)  # not known where pytest was not told of this folder
        turn = [_TODAY if int(sampling.tree()[:8], 16) % 2 else _OLD]
        chosen = {"both": [_OLD, _TODAY], "turn": turn}.get(asked, [asked])
        note = f"of {' and '.join(chosen)}"
        if folder := programs.given():
            chosen, note = [_OLD], f"that in {folder}"
        elif config.option.collectonly or asked not in ("both", "turn") or _TODAY not in chosen:
            pass  # nothing is to be made, or it must be had
        elif why := programs.why_not_today():
            chosen, note = [_OLD], f"of {_OLD} alone; today's cannot be had: {why}"
        config.stash[_ASKED], config.stash[_NOTE] = chosen, note
    return config.stash[_ASKED]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if note := terminalreporter.config.stash.get(_NOTE, ""):
        terminalreporter.write_line(f"Kubernetes for {', '.join(sorted(_ON_BOTH))}: {note}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    other = programs.given() and programs.release("kube-apiserver") != (1, 20)
    for item in items:
        if item.path.is_relative_to(_FOLDER) and _is_real(item):
            if other and item.get_closest_marker("of_1_20"):
                item.add_marker(pytest.mark.skip(reason="it is of Kubernetes 1.20 alone"))
            item.add_marker(pytest.mark.kubernetes)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What takes minutes to make is made before the clock of a test runs; what cannot be made fails its tests then."""
    real = [item for item in session.items if item.get_closest_marker("kubernetes")]
    if not real or session.config.option.collectonly:
        return
    with contextlib.suppress(AssertionError):
        programs.prepare()
    with contextlib.suppress(AssertionError):
        images.prepare()
    given = [item.callspec.params for item in real if hasattr(item, "callspec")]
    if any(params.get("judge") == "server" or params.get("kube") == _TODAY for params in given):
        with contextlib.suppress(AssertionError):
            programs.today("kubectl")


def _is_real(item: pytest.Item) -> bool:
    return bool({"_plain_cluster", "_plain_node_cluster"} & set(getattr(item, "fixturenames", ())))


@pytest.fixture(scope="session")
def kube(request: pytest.FixtureRequest) -> str:
    """The release of the clusters that the whole session keeps."""
    return str(request.param)


@contextlib.contextmanager
def _running(kube: str) -> Iterator[KubernetesCluster]:
    kubectl = programs.today("kubectl") if kube == _TODAY else None
    with KubernetesCluster(new_folder(), kubectl=kubectl) as cluster:
        if kube == _TODAY:
            CrdServer(cluster).serve_definitions(CRD)
        yield cluster


@pytest.fixture(scope="session")
def _plain_cluster(kube: str) -> Iterator[KubernetesCluster]:
    with _running(kube) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _plain_node_cluster(kube: str) -> Iterator[KubernetesCluster]:
    with _running(kube) as cluster:
        node = cluster.with_node()
        node.import_image(images.busybox())
        yield cluster


@pytest.fixture
def cluster(_plain_cluster: KubernetesCluster) -> Iterator[KubernetesCluster]:
    """A control plane, where Pods stay Pending; quiet before and after."""
    yield _plain_cluster
    _plain_cluster.settle()


@pytest.fixture(scope="module")
def kept_cluster(_plain_cluster: KubernetesCluster) -> Iterator[KubernetesCluster]:
    """The same, for a module whose tests share what stands on it: none of them may use ``cluster`` beside it."""
    yield _plain_cluster
    _plain_cluster.settle()


@pytest.fixture
def node_cluster(_plain_node_cluster: KubernetesCluster) -> Iterator[KubernetesCluster]:
    """A cluster with a node; quiet before and after."""
    yield _plain_node_cluster
    _plain_node_cluster.settle()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own, in the cluster it uses; it goes when the cluster settles."""
    used = "node_cluster" if "node_cluster" in request.fixturenames else "cluster"
    made: KubernetesCluster = request.getfixturevalue(used)
    return made.make_namespace()


@pytest.fixture
def site(cluster: KubernetesCluster) -> Iterator[Site]:
    """Moorings on the control plane, with 16 IPUs."""
    with ipu_site(cluster) as found:
        yield found


@pytest.fixture
def watched(site: Site) -> Iterator[Watcher]:
    """A namespace of a module's ``site`` in which the laws are watched; nothing is left of it."""
    with lawful(site) as watcher:
        yield watcher


@pytest.fixture
def home(watched: Watcher) -> str:
    """Its name."""
    return watched.namespace
