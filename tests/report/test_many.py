"""Many checkpoints: in real processes, on a real cluster, killed and resumed."""

import collections
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import many_work
import pytest
from onnx_models import conv_model, onnx
from optional import needed

from convspectra._report import many
from convspectra._report.backends import DIED
from convspectra._report.many import (
    Outcome,
    each_checkpoint,
    natural_key,
    shard,
    trajectories,
)

joblib = needed("joblib")

SUPPORT = Path(__file__).parents[1] / "support"
# Where other processes look for modules: for this package as this one does.
PATHS = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])


@pytest.fixture
def marks(tmp_path):
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


def calls(marks):
    """How often the work was called for each name of a checkpoint."""
    return collections.Counter(mark.stem for mark in marks.iterdir())


def save(folder, names, content="1.5"):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(content)
    return [folder / name for name in names]


def ends(outcomes):
    """What is known of each checkpoint, in short."""
    return [
        o.document["layers"][0]["norm_lower"] if o.document else o.error
        for o in outcomes
    ]


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_is_done_once_and_kept(tmp_path, marks, jobs):
    paths = save(tmp_path / "runs", ["c", "a", "b"])
    paths[1].write_text("2.5")
    work, steps = partial(many_work.marked, marks=marks), []
    run = partial(each_checkpoint, folder=tmp_path / "new" / "out", key={"v": (1, 2)})
    first = run(paths, work, jobs=jobs, advance=lambda: steps.append("first"))
    again = run(paths, work, jobs=jobs, advance=lambda: steps.append("again"))
    assert steps == ["first"] * 3 + ["again"] * 3
    assert [o.path for o in first] == [o.path for o in again] == paths
    assert ends(first) == [1.5, 2.5, 1.5]
    assert [o.document for o in again] == [o.document for o in first]
    assert [o.was_done_before for o in first + again] == [False] * 3 + [True] * 3
    assert calls(marks) == {"a": 1, "b": 1, "c": 1}
    here = [o.document["process"] == os.getpid() for o in first]
    assert here == [jobs == 1] * 3


def test_one_path_given_twice_is_done_once(tmp_path, marks, monkeypatch):
    (path,) = save(tmp_path / "runs", ["a"])
    monkeypatch.chdir(tmp_path)
    given = [path, Path("runs/a"), path]
    work = partial(many_work.marked, marks=marks)
    steps = []
    for done_before in (False, True):
        outcomes = each_checkpoint(
            given, work, tmp_path / "out", key={}, advance=lambda: steps.append(1)
        )
        assert [o.path for o in outcomes] == given
        assert [o.was_done_before for o in outcomes] == [done_before] * 3
    assert steps == [1, 1]
    assert calls(marks) == {"a": 1}


def rewrite(path, content, *, is_stamped=False):
    """Write a file; not stamped, it keeps its time, as where clocks are coarse."""
    before = path.stat()
    path.write_text(content)
    if not is_stamped:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("is_old", "change"),
    [
        (True, partial(rewrite, content="2.5", is_stamped=True)),
        (True, partial(rewrite, content="2.500")),
        (False, partial(rewrite, content="2.5")),
    ],
    ids=["time", "size", "content"],
)
def test_a_changed_file_is_done_again(tmp_path, is_old, change):
    paths = save(tmp_path / "runs", ["a", "b"])
    time_of_change = 10**9 if is_old else time.time() + 60
    os.utime(paths[0], (time_of_change, time_of_change))
    run = partial(each_checkpoint, paths, many_work.norms, tmp_path / "out", key={})
    assert ends(run()) == [1.5, 1.5]
    change(paths[0])
    assert ends(again := run()) == [2.5, 1.5]
    assert [o.was_done_before for o in again] == [False, True]
    assert all(o.was_done_before for o in run())


def save_index(folder):
    """A sharded checkpoint; returns its index, and a shard."""
    shards = save(folder, ["one.safetensors", "two.safetensors"])
    index = {"weight_map": {shard.stem: shard.name for shard in shards}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder / "model.safetensors.index.json", shards[1]


def save_folder_with_index(folder):
    return folder, save_index(folder)[1]


def save_folder_with_config(folder):
    save(folder, ["model.safetensors"])
    return folder, save(folder, ["config.json"])[0]


def save_graph(folder):
    """A SavedModel by its graph, and the shard of its variables."""
    (graph,) = save(folder, ["saved_model.pb"])
    names = ["variables.index", "variables.data-00000-of-00001"]
    return graph, save(folder / "variables", names)[1]


def save_saved_model(folder):
    return folder, save_graph(folder)[1]


def save_onnx(folder):
    """A model, and the file with its numbers."""
    (path,) = save(folder, ["model.onnx"])
    options = {"location": "weights.bin", "size_threshold": 0}
    onnx.save(conv_model(), path, save_as_external_data=True, **options)
    return path, folder / "weights.bin"


SEVERAL_FILES = {
    "index": save_index,
    "folder with an index": save_folder_with_index,
    "folder with a configuration": save_folder_with_config,
    "graph of a SavedModel": save_graph,
    "SavedModel": save_saved_model,
    "external data": save_onnx,
}


@pytest.mark.parametrize("is_old", [True, False], ids=["by time", "by content"])
@pytest.mark.parametrize("kind", SEVERAL_FILES)
def test_a_checkpoint_is_done_again_when_any_of_its_files_changes(
    tmp_path, kind, is_old
):
    path, part = SEVERAL_FILES[kind](tmp_path / "net")
    files = [file for file in (tmp_path / "net").rglob("*") if file.is_file()]
    when = 10**9 if is_old else time.time() + 60
    for file in files:
        os.utime(file, (when, when))
    content = part.read_bytes()
    run = partial(
        each_checkpoint,
        [path],
        lambda _: {"layers": [{"norm_lower": part.stat().st_size}]},
        tmp_path / "out",
        key={},
    )
    assert [run()[0].was_done_before for _ in "12"] == [False, True]
    part.write_bytes(content[::-1] if content[::-1] != content else b"2.5")
    if not is_old:
        os.utime(part, (when, when))
    assert [run()[0].was_done_before for _ in "12"] == [False, True]


def test_files_beside_a_checkpoint_are_none_of_its_own(tmp_path):
    path, _ = save_onnx(tmp_path / "net")
    run = partial(
        each_checkpoint, [path], lambda _: {"layers": []}, tmp_path / "out", key={}
    )
    run()
    save(tmp_path / "net", ["other.bin", "other.onnx"])
    assert run()[0].was_done_before


def test_another_key_is_another_result(tmp_path):
    paths = save(tmp_path / "runs", ["a"])
    run = partial(each_checkpoint, paths, many_work.norms, tmp_path / "out")
    seen = [run(key=key)[0] for key in ({"grid": 8}, {"grid": 9}, {"grid": 9})]
    assert [o.was_done_before for o in seen] == [False, False, True]


def test_what_has_not_changed_for_long_is_not_read_to_see_that(tmp_path, monkeypatch):
    paths = save(tmp_path / "runs", ["a"])
    os.utime(paths[0], (10**9, 10**9))
    run = partial(each_checkpoint, paths, many_work.norms, tmp_path / "out", key={})
    monkeypatch.setattr(many, "_sha256", lambda files: pytest.fail("this was read"))
    assert [run()[0].was_done_before for _ in "12"] == [False, True]


def emptied(result):
    return json.dumps(json.loads(result) | {"document": 1}).encode()


@pytest.mark.parametrize(
    "damaged",
    [
        emptied,
        lambda result: result[:-1],
        lambda result: b"",
        lambda result: b"[1]",
        lambda result: b"[" * 10**5,
        lambda result: b"\xff",
    ],
)
def test_a_damaged_result_is_made_again(tmp_path, damaged):
    paths = save(tmp_path / "runs", ["a"])
    run = partial(each_checkpoint, paths, many_work.norms, tmp_path / "out", key={})
    run()
    (result,) = (tmp_path / "out").iterdir()
    result.write_bytes(damaged(result.read_bytes()))
    assert not run()[0].was_done_before
    assert run()[0].was_done_before


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_cannot_be_read_is_one_outcome_and_tried_again(tmp_path, jobs):
    paths = save(tmp_path / "runs", ["a", "corrupt", "missing", "folder", "z"])
    paths[1].write_text("???")
    paths[2].unlink()
    paths[3].unlink()
    paths[3].mkdir()
    run = partial(each_checkpoint, paths, many_work.norms, tmp_path / "out", key={})
    for done_before in (False, True):
        outcomes = run(jobs=jobs)
        seen = [o.was_done_before for o in outcomes]
        assert seen == [done_before, False, False, False, done_before]
        found = ends(outcomes)
        assert (found[0], found[4]) == (1.5, 1.5)
        assert found[1] == "could not convert string to float: '???'"
        assert "No such file" in found[2]
        assert "A folder must hold a network" in found[3]
    (record,) = (tmp_path / "out").glob("corrupt-*.json")
    assert json.loads(record.read_text())["error"] == found[1]
    paths[1].write_text("4")
    assert ends(run(jobs=jobs))[1] == 4


@pytest.mark.parametrize("jobs", [1, 2])
def test_errors_of_any_kind_are_outcomes(tmp_path, jobs):
    paths = save(tmp_path / "runs", ["deep", "strange"])
    work = many_work.impossible
    found = ends(each_checkpoint(paths, work, tmp_path / "out", key={}, jobs=jobs))
    assert found[0] == "RecursionError: too deep"
    assert "is not JSON serializable" in found[1]


def test_a_process_that_dies_takes_no_other_with_it(tmp_path, marks):
    names = [f"n{i}" for i in range(12)]
    names[1], names[6] = "deadly1", "deadly2"
    paths = save(tmp_path / "runs", names)
    work = partial(many_work.deadly, marks=marks, seconds=0.02)
    outcomes = each_checkpoint(paths, work, tmp_path / "out", key={}, jobs=2)
    want = [DIED if name.startswith("deadly") else 1.5 for name in names]
    assert ends(outcomes) == want
    # Found guilty when it was alone; of the others only those beside it ran twice.
    seen = calls(marks)
    assert seen["deadly1"] == seen["deadly2"] == 2
    assert sum(seen.values()) <= len(names) + 2 + 2 * 3
    work = partial(many_work.marked, marks=marks)  # the cause is gone
    again = each_checkpoint(paths, work, tmp_path / "out", key={}, jobs=2)
    assert ends(again) == [1.5] * 12
    assert sum(not o.was_done_before for o in again) == 2


@pytest.mark.parametrize(("jobs", "tries"), [(1, 1), (2, 2)])
def test_short_memory_is_tried_again_with_none_beside(tmp_path, marks, jobs, tries):
    paths = save(tmp_path / "runs", ["a", "large", "huge", "b"])
    work = partial(many_work.large, marks=marks)
    found = ends(each_checkpoint(paths, work, tmp_path / "out", key={}, jobs=jobs))
    short = "The memory must suffice for this checkpoint, and does not (10 GiB)."
    assert found == [1.5, short if tries == 1 else 1.5, short, 1.5]
    assert calls(marks) == {"a": 1, "large": tries, "huge": tries, "b": 1}


def start(*arguments):
    """The script of `many_work`, in a process group of its own."""
    command = [sys.executable, "-c", "import many_work; many_work.main()"]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": PATHS},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "this took too long"
        time.sleep(0.01)


@pytest.mark.parametrize("signals", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_stopped_goes_on_where_it_was(tmp_path, marks, signals):
    paths = save(tmp_path / "runs", [f"step{i}" for i in range(200)])
    out = tmp_path / "out"
    process = start(tmp_path / "runs", marks, out, 2, 1, 1)
    wait_for(lambda: out.exists() and len(list(out.glob("step*"))) >= 40)
    if signals == signal.SIGKILL:
        process.kill()  # the parent alone, as the system does when memory is short
    else:
        os.killpg(process.pid, signals)  # as a terminal does
    # Its workers end by themselves, and let go of stderr.
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (-9 if signals == signal.SIGKILL else 77), errors
    before = {path.name.partition("-")[0] for path in out.glob("step*")}
    assert 40 <= len(before) < 200
    assert set(calls(marks)) >= before
    work = partial(many_work.marked, marks=marks)
    outcomes = each_checkpoint(paths, work, out, key={}, jobs=2)
    assert ends(outcomes) == [1.5] * 200
    assert {o.path.name for o in outcomes if o.was_done_before} == before
    seen = calls(marks)
    assert all(seen[name] == 1 for name in before)
    assert len(seen) == 200
    assert sum(seen.values()) <= 200 + 4  # those that were in flight


def test_shards_share_a_folder_and_do_each_once(tmp_path, marks):
    paths = save(tmp_path / "runs", [f"step{i}" for i in range(25)])
    out = tmp_path / "out"
    shards = [start(tmp_path / "runs", marks, out, 1, i, 3) for i in (1, 2, 3)]
    for process in shards:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert calls(marks) == {path.name: 1 for path in paths}
    whole = each_checkpoint(paths, pytest.fail, out, key={})
    assert ends(whole) == [1.5] * 25


def test_a_shard_is_every_nth_of_the_sorted_paths_in_the_order_given():
    paths = [Path(f"step{i}") for i in (10, 9, 2, 1)]
    assert shard(paths, 1, 2) == [Path("step9"), Path("step1")]
    assert shard(paths, 2, 2) == [Path("step10"), Path("step2")]
    assert shard(paths, 7, 7) == []


@pytest.mark.parametrize("number", [0, 4])
def test_a_shard_must_be_there(number):
    with pytest.raises(ValueError, match=r"at least 1, got 0|from 1 to .* 4 of 3"):
        shard([], number, 3)


def test_equal_names_in_two_folders_are_two_checkpoints(tmp_path):
    paths = [*save(tmp_path / "a", ["k.pt"]), *save(tmp_path / "b", ["k.pt"], "2.5")]
    run = partial(each_checkpoint, paths, many_work.norms, tmp_path / "out", key={})
    assert ends(run()) == ends(run()) == [1.5, 2.5]
    assert len(list((tmp_path / "out").glob("k_pt-*.json"))) == 2


def test_names_of_results_are_safe_everywhere(tmp_path):
    names = [
        "CON.pt",
        "-rf",
        "a b:c*?.npz",
        "x" * 250,
        "чек",
        "nul\n",
        b"\xff".decode(errors="surrogateescape"),
    ]
    paths = save(tmp_path / "runs", names)
    run = partial(each_checkpoint, paths, many_work.norms, tmp_path / "out", key={})
    assert ends(run()) == [1.5] * len(names)
    assert all(o.was_done_before for o in run())
    found = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert len(found) == len(names)
    for name in found:
        head, _, tail = name.removesuffix(".json").rpartition("-")
        assert 1 <= len(head) <= 80
        assert head.replace("_", "").isalnum()
        assert head.isascii()
        assert len(tail) == 16


def test_the_folder_is_tried_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    paths = save(tmp_path / "runs", ["a"])
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/self")):
        with pytest.raises(OSError, match="folder for results must be writable, got '"):
            each_checkpoint(paths, pytest.fail, folder, key={})


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_full_disk_is_one_error_that_keeps_what_was_done(tmp_path, jobs):
    # No more than two are left, for loky has a race: an error in a thread of its own
    # where work is given up in the moment in which it is handed over.
    paths = save(tmp_path / "runs", [f"n{i}" for i in range(5)])
    work, out = many_work.norms, tmp_path / "out"
    each_checkpoint(paths[:3], work, out, key={}, jobs=jobs)  # starts the processes too
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Nothing longer than this can be written now, by the kernel's word.
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(OSError, match=r"json' must be writable: File too large"):
            each_checkpoint(paths, work, out, key={}, jobs=jobs)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(list(out.iterdir())) == 3
    assert (
        sum(o.was_done_before for o in each_checkpoint(paths, work, out, key={})) == 3
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jobs": 0}, "`jobs` must be at least 1, got 0"),
        ({"backend": "threads"}, "one of loky, dask, ray, got 'threads'"),
        ({"backend": "dask"}, "address of a cluster, and given only for one, got None"),
        ({"scheduler": "tcp://a:1"}, "only for one, got 'tcp://a:1' for loky"),
        ({"backend": "dask", "scheduler": "a", "jobs": 2}, "left out on a cluster"),
    ],
)
def test_options_are_checked_first(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        each_checkpoint([], many_work.norms, tmp_path / "out", key={}, **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("module", "options", "extra"),
    [
        ("joblib", {"jobs": 2}, "report"),
        ("distributed", {"backend": "dask", "scheduler": "tcp://a:1"}, "dask"),
        ("ray", {"backend": "ray"}, "ray"),
    ],
)
def test_missing_tools_say_how_to_get_them(
    tmp_path, monkeypatch, module, options, extra
):
    monkeypatch.setitem(sys.modules, module, None)  # as if not installed
    message = rf"`{module}` must be installed .* 'convspectra\[{extra}\]'"
    with pytest.raises(ModuleNotFoundError, match=message):
        each_checkpoint([], many_work.norms, tmp_path / "out", key={}, **options)


@pytest.fixture(scope="module")
def distributed():
    return needed("distributed")


@contextlib.contextmanager
def dask_cluster(distributed, folder, *, workers):
    """The address of a scheduler, its process, and workers in others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    dask = [sys.executable, "-m", "dask"]
    worker = [*dask, "worker", address, "--nthreads", "1", "--no-dashboard"]
    worker += ["--local-directory", str(folder)]
    environment = os.environ | {
        "PYTHONPATH": PATHS,
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",  # and no three
    }
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("w"))

        def start(command):
            process = subprocess.Popen(command, env=environment, stderr=log, cwd=folder)
            stack.callback(end, process)
            return process

        scheduler = start([*dask, "scheduler", "--host", address, "--no-dashboard"])
        for i in range(workers):
            start([*worker, "--name", str(i)])
        with distributed.Client(address, timeout=60) as client:
            client.wait_for_workers(workers, timeout=60)
        yield address, scheduler


def end(process):
    process.terminate()  # a worker takes its child along
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory, distributed):
    folder = tmp_path_factory.mktemp("dask")
    with dask_cluster(distributed, folder, workers=2) as (address, _):
        yield address


def test_on_a_cluster(tmp_path, marks, monkeypatch, distributed, two_workers):
    monkeypatch.chdir(tmp_path)  # where the workers are not
    save(tmp_path / "runs", names := [f"n{i}" for i in range(20)])
    (tmp_path / "runs" / "n7").write_text("???")
    paths = [Path("runs") / name for name in names]
    run = partial(
        each_checkpoint,
        paths,
        partial(many_work.marked, marks=marks, seconds=0.02),
        tmp_path / "out",
        key={},
    )
    outcomes = run(backend="dask", scheduler=two_workers)
    want = [1.5] * 20
    want[7] = "could not convert string to float: '???'"
    assert ends(outcomes) == want
    assert [o.path for o in outcomes] == paths
    assert calls(marks) == dict.fromkeys(names, 1)
    processes = {o.document["process"] for o in outcomes if o.document}
    assert len(processes) == 2
    assert os.getpid() not in processes
    with pytest.raises(ValueError, match="No global client found"):
        distributed.get_client()  # none is left open
    again = run()  # and what a cluster has done is done for all
    assert sum(o.was_done_before for o in again) == 19


def test_a_worker_of_a_cluster_that_dies(tmp_path, marks, two_workers):
    paths = save(tmp_path / "runs", ["a", "deadly", "b", "c", "d"])
    work = partial(many_work.deadly, marks=marks)
    outcomes = each_checkpoint(
        paths, work, tmp_path / "out", key={}, backend="dask", scheduler=two_workers
    )
    assert ends(outcomes) == [1.5, DIED, 1.5, 1.5, 1.5]
    assert calls(marks)["deadly"] == 2


def test_a_scheduler_that_is_lost(tmp_path, distributed):
    paths = save(tmp_path / "runs", [f"n{i}" for i in range(9)])
    work = partial(many_work.marked, marks=tmp_path, seconds=0.1)
    run = partial(each_checkpoint, paths, work, tmp_path / "out", key={})
    with (
        dask_cluster(distributed, tmp_path, workers=1) as (address, scheduler),
        pytest.raises(OSError, match=f"at '{address}' must run to the end"),
    ):
        run(backend="dask", scheduler=address, advance=scheduler.kill)
    assert 1 <= sum(outcome.was_done_before for outcome in run()) < 9


def test_a_scheduler_must_answer(tmp_path, distributed):
    paths = save(tmp_path / "runs", ["a"])
    run = partial(each_checkpoint, paths, many_work.norms, tmp_path / "out", key={})
    soon = needed("dask").config.set({"distributed.comm.timeouts.connect": "200ms"})
    with socket.socket() as silent, soon:
        silent.bind(("127.0.0.1", 0))  # and never listens
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(OSError, match=rf"must answer at '{address}'"):
            run(backend="dask", scheduler=address)


@pytest.fixture(scope="module")
def ray_cluster():
    """The address of a Ray cluster for two tasks at a time, with its own home."""
    needed("ray")
    with contextlib.ExitStack() as stack:
        # Not one of pytest's: the names of sockets below it must be short.
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("HOME", str(home))  # where Ray leaves a secret for its clients
        patch.delenv("RAY_ADDRESS", raising=False)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = f"start --head --block --port={port} --node-ip-address=127.0.0.1"
        command += f" --num-cpus=2 --temp-dir={home} --disable-usage-stats"
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *command.split()],
            env=os.environ | {"PYTHONPATH": PATHS},
            stdout=stack.enter_context((home / "log").open("w")),
            stderr=subprocess.STDOUT,
        )
        stack.callback(end, process)
        wait_for(lambda: "Ray runtime started" in (home / "log").read_text())
        yield f"127.0.0.1:{port}"


def test_on_a_ray_cluster(tmp_path, marks, ray_cluster):
    paths = save(tmp_path / "runs", names := ["a", "deadly", "b", "broken", "c", "d"])
    paths[3].write_text("???")
    work = partial(many_work.deadly, marks=marks, seconds=0.1)
    run = partial(each_checkpoint, paths, work, tmp_path / "out", key={})
    outcomes = run(backend="ray", scheduler=ray_cluster)
    refusal = "could not convert string to float: '???'"
    assert ends(outcomes) == [1.5, DIED, 1.5, refusal, 1.5, 1.5]
    assert [o.path for o in outcomes] == paths
    assert calls(marks) == dict.fromkeys(names, 1) | {"deadly": 2}
    processes = {o.document["process"] for o in outcomes if o.document}
    assert os.getpid() not in processes
    assert not needed("ray").is_initialized()  # no connection is left open


def test_processes_beside_each_other_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    paths = save(tmp_path / "runs", ["a", "b", "c"])
    work = many_work.surroundings
    outcomes = each_checkpoint(paths, work, tmp_path / "out", key={}, jobs=2)
    share = max(joblib.cpu_count() // 2, 1)
    assert {outcome.document["cores"] for outcome in outcomes} == {share}


def test_numbers_in_names_sort_by_size():
    want = ["2", "10", "a2/k", "a2/k2", "a2/k10", "a10/k1", "b2", "step", "step09.pt"]
    want += ["step9.pt", "step10.pt", "x2", "x" + "1" * 5000]
    for names in (want, reversed(want), sorted(want)):
        assert [str(p) for p in sorted(map(Path, names), key=natural_key)] == want


def test_trajectories_have_a_gap_where_something_is_missing():
    def outcome(step, document):
        return Outcome(Path(step), document, None if document else "broken")

    def layer(name, lower, upper):
        return {"name": name, "norm_lower": lower, "norm_upper": upper}

    outcomes = [
        outcome("s1", {"layers": [layer("a", 1, 2)]}),
        outcome("s2", None),
        outcome("s3", {"layers": [layer("b", 3, 4), layer("a", 5, 6)]}),
    ]
    assert trajectories(outcomes) == {
        "checkpoints": ["s1", "s2", "s3"],
        "layers": {
            "a": {"lower": [1, None, 5], "upper": [2, None, 6]},
            "b": {"lower": [None, None, 3], "upper": [None, None, 4]},
        },
    }
    assert trajectories(outcomes[:2]) is None
