"""Reading and writing spaces: caches open and closed, T4, compact files, and everything that can be wrong with them."""

from __future__ import annotations

import copy
import gzip
import io
import json
import math

import numpy as np
import pytest

from envs.autotune_env import compact, readers, suite
from envs.autotune_env.domain import Domain, Parameter, SpaceError
from envs.autotune_env.readers import read
from envs.autotune_env.records import Labels
from envs.autotune_env.space import Space, Status, direction
from envs.autotune_env.synthetic import DEVICES, RESTRICTIONS, synthetic
from tests.autotune_env.caches import to_cache
from tests.autotune_env.official import to_t4


@pytest.fixture(scope="module")
def cache(space):
    return to_cache(space)


def written(tmp_path, data, name="cache.json"):
    path = tmp_path / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def assert_same(left: Space, right: Space, samples: bool = True) -> None:
    assert left.domain.parameters == right.domain.parameters
    assert left.domain.constants == right.domain.constants
    assert left.domain.order == right.domain.order
    for name in ("status", "values"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    np.testing.assert_array_equal(left.domain.configurations, right.domain.configurations)
    np.testing.assert_allclose(left.costs, right.costs, rtol=1e-5)
    if samples:
        np.testing.assert_array_equal(left.samples, right.samples)


@pytest.mark.parametrize("new", [False, True], ids=["old errors", "__error__"])
def test_a_cache_reads_as_the_space_that_it_was_written_from(tmp_path, space, new):
    assert_same(read(written(tmp_path, to_cache(space, new))), space)


def test_the_order_of_the_entries_does_not_matter(tmp_path, space, cache):
    entries = list(cache["cache"].items())
    np.random.default_rng(0).shuffle(entries)
    assert_same(read(written(tmp_path, cache | {"cache": dict(entries)})), space)


@pytest.mark.parametrize("ending", ["", ",", ",\n"])
def test_an_open_cache_is_whole(tmp_path, space, cache, ending):
    text = json.dumps(cache)
    assert text.endswith("}}}")
    assert_same(read(written(tmp_path, text[:-2] + ending)), space)


def test_a_cache_may_be_compressed(tmp_path, space, cache):
    path = tmp_path / "cache.json.gz"
    path.write_bytes(gzip.compress(json.dumps(cache).encode()))
    assert_same(read(path), space)


def test_a_t4_file_reads_as_the_same_space(tmp_path, space):
    found = read(written(tmp_path, to_t4(space)))
    constants = dict(space.domain.constants)
    assert found.domain.parameters == space.domain.parameters and found.domain.constants == constants
    np.testing.assert_array_equal(found.status, space.status)
    np.testing.assert_array_equal(found.values, space.values)
    np.testing.assert_allclose(found.seconds, space.seconds, rtol=1e-5)


def test_a_file_cut_anywhere_is_refused_or_reads_as_its_whole_entries(tmp_path, cache):
    small = cache | {"cache": dict(list(cache["cache"].items())[:4])}
    text = json.dumps(small)
    for end in (*range(0, len(text), 29), *range(len(text) - 60, len(text))):
        path = written(tmp_path, text[:end])
        try:
            found = read(path)
        except SpaceError as error:
            assert str(error).startswith(f"{path}: ")
        else:
            assert 1 <= len(found) <= 4 and text[:end].rstrip(", ").endswith("}")


@pytest.mark.parametrize("status", [status for status in Status if status])
def test_a_cache_of_ours_says_how_each_configuration_failed(tmp_path, cache, status):
    error = {"__error__": "RuntimeFailedConfig", "time": "RuntimeFailedConfig", "invalidity": status.label}
    found = read(written(tmp_path, change(cache, "cache", FIRST, to={**cache["cache"][FIRST], **error})))
    assert found.status[0] == status


def named(cache, old, new):
    """A cache with a parameter of another name; entries keep its value where they have no such field."""
    return {
        **cache,
        "tune_params_keys": [new if name == old else name for name in cache["tune_params_keys"]],
        "tune_params": {new if name == old else name: values for name, values in cache["tune_params"].items()},
        "cache": {
            key: {new: entry[old], **{name: value for name, value in entry.items() if name != old}}
            for key, entry in cache["cache"].items()
        },
    }


@pytest.mark.parametrize("name", sorted(readers.FIELDS))
def test_a_parameter_may_be_called_what_a_cache_calls_a_field(tmp_path, space, cache, name):
    found = read(written(tmp_path, named(cache, "unroll", name)))
    assert [p.name for p in found.domain.parameters if p.values == (1, 2, 4, 8)] == [name]
    np.testing.assert_array_equal(found.values, space.values)
    np.testing.assert_array_equal(found.status, space.status)


def test_a_field_that_a_parameter_hides_is_missing(tmp_path, cache):
    without = change(cache, "cache", FIRST, "compile_time")
    with pytest.raises(SpaceError, match=f"entry {FIRST}: compile_time is missing"):
        read(written(tmp_path, named(without, "unroll", "compile_time")))


@pytest.mark.parametrize("part", [0.3, 0.9])
def test_a_cut_file_says_where_it_ends(tmp_path, cache, part):
    text = json.dumps(cache, indent=1)
    end = text.index("compile_time", int(part * len(text)))
    with pytest.raises(SpaceError, match=r"line \d+, column \d+: the file ends in the middle of an entry: it was cut"):
        read(written(tmp_path, text[: end + 3]))


def test_a_cut_compressed_file_says_so(tmp_path, cache):
    path = tmp_path / "cache.json.gz"
    path.write_bytes(gzip.compress(json.dumps(cache).encode())[:-3000])
    with pytest.raises(SpaceError, match="the compressed data is cut or damaged"):
        read(path)


FIRST = "8,4,1,1,1,0,0,15"


def change(data, *path, to=None):
    """A copy of nested data with one item changed, or without it."""
    data = copy.deepcopy(data)
    place = data
    for name in path[:-1]:
        place = place[name]
    if to is None:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return data


@pytest.mark.parametrize(
    ("path", "to", "message"),
    [
        (("tune_params",), None, "the header: tune_params is missing"),
        (("tune_params_keys",), None, "the header: tune_params_keys is missing"),
        (("cache",), None, r"neither cache \(Kernel Tuner\) nor results \(T4\) is among its keys"),
        (("cache",), {}, "the cache has no entry"),
        (("tune_params", "unroll"), None, "tune_params and tune_params_keys differ: unroll is in one of them only"),
        (("tune_params", "unroll"), [2, 4, 8], f"entry {FIRST}: unroll is 1, which is not among its values"),
        (("cache", FIRST, "unroll"), None, f"entry {FIRST}: unroll is missing"),
        (("cache", FIRST, "unroll"), 2, f"entry {FIRST}: its parameters, in the order of tune_params_keys, are"),
        (("cache", FIRST, "compile_time"), None, f"entry {FIRST}: compile_time is missing"),
        (("cache", FIRST, "compile_time"), "long", f"entry {FIRST}: compile_time is a number, not 'long'"),
        (("cache", FIRST, "times"), [1, "x"], f"entry {FIRST}: the times of its runs are a list of numbers"),
        (("cache", FIRST, "time"), "OddError", f"entry {FIRST}: time is 'OddError', neither a number nor one of"),
        (("cache", FIRST, "time"), -1.0, f"configuration {FIRST} breaks a rule: its objective is a positive number"),
        (("cache", FIRST), 3, f"entry {FIRST}: an entry is an object"),
        (("objective",), "quality", f"entry {FIRST}: quality is missing"),
        (("objective",), ["time", "energy"], "a space has one objective, not 2"),
    ],
)
def test_what_is_wrong_with_a_cache_is_named_with_its_entry(tmp_path, cache, path, to, message):
    assert FIRST in cache["cache"]
    with pytest.raises(SpaceError, match=message):
        read(written(tmp_path, change(cache, *path, to=to)))


def test_parameters_in_another_order_than_the_keys_are_refused(tmp_path, cache):
    keys = cache["tune_params_keys"]
    with pytest.raises(SpaceError, match=f"entry {FIRST}: .* are 4,8,1,1,1,0,0,15: the order differs"):
        read(written(tmp_path, cache | {"tune_params_keys": [keys[1], keys[0], *keys[2:]]}))


def test_a_configuration_that_the_rules_allow_must_have_been_recorded(tmp_path, space, cache):
    rules = Labels(restrictions=RESTRICTIONS)
    assert_same(read(written(tmp_path, cache), rules), space)
    with pytest.raises(SpaceError, match=r"1 of 3,345 configurations: block_size_x=8, .* is allowed and not recorded"):
        read(written(tmp_path, change(cache, "cache", FIRST)), rules)
    with pytest.raises(SpaceError, match="is recorded and not allowed"):
        read(written(tmp_path, cache), Labels(restrictions=(*RESTRICTIONS, "unroll < 8")))


@pytest.fixture(scope="module")
def results(space):
    return json.loads(to_t4(space))


@pytest.mark.parametrize(
    ("path", "to", "message"),
    [
        (("metadata", "timeunit"), "weeks", "metadata.timeunit is one of s, seconds, .* not 'weeks'"),
        (("results",), [], "there is no result"),
        (("results", 5, "invalidity"), "odd", "result 5: invalidity is one of correct, constraints, .* not 'odd'"),
        (("results", 5, "configuration"), {"a": 1}, "result 5: its parameters are not those of result 0"),
        (("results", 5, "times"), None, "result 5: times is missing"),
        (("results", 5, "times", "compilation"), None, "result 5: compilation_time is missing"),
        (("results", 5, "times", "framework"), "x", "result 5: framework is a number, not 'x'"),
    ],
)
def test_what_is_wrong_with_a_t4_file_is_named_with_its_result(tmp_path, results, path, to, message):
    with pytest.raises(SpaceError, match=message):
        read(written(tmp_path, change(results, *path, to=to)))


JUNK = (None, True, -1, 1.5, 10**400, math.nan, math.inf, "", "x", "InvalidConfig", [], [[1]], [1, 1], {}, {"a": 1})


def places(data, path=()):
    """The paths to everything in nested data."""
    items = data.items() if isinstance(data, dict) else enumerate(data[:1]) if isinstance(data, list) else ()
    for name, item in items:
        yield (*path, name)
        yield from places(item, (*path, name))


@pytest.mark.parametrize("form", ["cache", "t4"])
def test_junk_anywhere_in_a_file_is_refused_or_harmless(tmp_path, cache, results, form):
    entries = dict(list(cache["cache"].items())[:2])
    data = cache | {"cache": entries} if form == "cache" else results | {"results": results["results"][:2]}
    refused = 0
    for place in places(data):
        for junk in JUNK:
            changed = copy.deepcopy(data)
            target = changed
            for name in place[:-1]:
                target = target[name]
            target[place[-1]] = junk
            try:
                read(written(tmp_path, changed))
            except SpaceError:
                refused += 1
    assert refused > 250


def test_rates_are_maximised_and_their_samples_follow_the_times(tmp_path, space):
    data = to_cache(space) | {"objective": "GFLOP/s"}
    for entry in data["cache"].values():
        if not isinstance(entry["time"], str):
            entry["GFLOP/s"] = 100 / entry["time"]
    found = read(written(tmp_path, data))
    assert found.higher_is_better and found.unit == "GFLOP/s"
    correct = found.correct
    np.testing.assert_allclose(found.values[correct], 100 / space.values[correct])
    harmonic = 1 / np.mean(1 / found.samples[correct].astype(float), axis=1)
    np.testing.assert_allclose(harmonic, found.values[correct], rtol=1e-6)


def test_an_objective_of_unknown_direction_must_be_told():
    with pytest.raises(SpaceError, match="objective quality: its name does not say whether more is better"):
        direction("quality")
    assert direction("quality", True) and not direction("GB/s", False) and direction("GB/s") and not direction("time")


def test_conditions_of_a_t1_file_are_read(tmp_path):
    data = {"ConfigurationSpace": {"Conditions": [{"Expression": rule, "Parameters": []} for rule in RESTRICTIONS]}}
    assert readers.restrictions_of(written(tmp_path, data)) == RESTRICTIONS
    with pytest.raises(SpaceError, match="ConfigurationSpace is missing"):
        readers.restrictions_of(written(tmp_path, {}))


# ---- the compact form


def packed(tmp_path, space, **options):
    path = tmp_path / "space.npz"
    path.write_bytes(compact.dump(space, **options))
    return path


@pytest.mark.parametrize("device", DEVICES)
def test_a_compact_file_reads_as_the_space_that_it_was_written_from(tmp_path, device):
    space = synthetic(device, 5)
    found = compact.load(packed(tmp_path, space))
    assert_same(found, space)
    np.testing.assert_array_equal(found.costs, space.costs)
    for name in ("name", "kernel", "device", "objective", "unit", "higher_is_better", "problem_size", "source"):
        assert getattr(found, name) == getattr(space, name)
    assert found.domain.restrictions == space.domain.restrictions


def test_the_same_space_makes_the_same_bytes(space):
    assert compact.dump(space) == compact.dump(synthetic())


def test_samples_may_be_left_out_or_thinned(tmp_path, space):
    assert compact.load(packed(tmp_path, space), samples=False).samples is None
    assert compact.load(packed(tmp_path, space, samples=0)).samples is None
    thin = compact.load(packed(tmp_path, space, samples=5)).samples
    assert thin.shape == (len(space), 5)
    correct = space.correct
    np.testing.assert_array_equal(thin[correct, 0], space.samples[correct].min(axis=1))
    np.testing.assert_array_equal(thin[correct, -1], space.samples[correct].max(axis=1))
    assert np.isnan(thin[~correct]).all()


def test_thinning_keeps_the_range_where_some_have_fewer_samples():
    samples = np.array([[3, 1, 2, np.nan, np.nan, np.nan], [6, 5, 4, 3, 2, 1], [np.nan] * 6], np.float32)
    np.testing.assert_array_equal(compact.thin(samples, 2), [[1, 3], [1, 6], [np.nan, np.nan]])
    np.testing.assert_array_equal(compact.thin(samples, 3), [[1, 2, 3], [1, 3, 6], [np.nan] * 3])


def test_a_compact_file_with_samples_stays_small(space):
    assert len(compact.dump(space, samples=8)) < 250_000
    assert len(compact.dump(space, samples=0)) < 80_000


@pytest.mark.parametrize("kept", [0, 10, 1000, -1000, -10])
def test_a_cut_compact_file_is_refused_by_name(tmp_path, space, kept):
    path = packed(tmp_path, space)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(SpaceError, match=rf"{path}: "):
        compact.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"header": None}, "header.* is missing|is not a file in the archive"),
        ({"values": None}, "values"),
        ({"header": np.frombuffer(b'{"format": "other"}', np.uint8)}, "the header is of format leirgym-space-1"),
        ({"header": np.frombuffer(b'{"format": "leirgym-space-1"}', np.uint8)}, "name is missing"),
        ({"status": np.zeros(3, np.int8)}, r"status is an array of int8 \(3345,\) for 3,345 configurations"),
        ({"values": np.zeros(3345, np.float32)}, "values is an array of float64"),
    ],
)
def test_a_damaged_compact_file_is_refused(tmp_path, space, changes, message):
    with np.load(io.BytesIO(compact.dump(space))) as archive:
        arrays = {name: archive[name] for name in archive}
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    path = tmp_path / "space.npz"
    np.savez(path, **arrays)
    with pytest.raises(SpaceError, match=message):
        compact.load(path)


def test_a_compact_file_never_unpickles(tmp_path):
    path = tmp_path / "space.npz"
    np.savez(path, header=np.array([{"a": 1}], dtype=object))
    with pytest.raises(SpaceError):
        compact.load(path)


# ---- the rules of a space


def small(**changes):
    domain = Domain((Parameter("x", (1, 2, 3)),), np.array([[0], [1], [2]], np.uint16))
    fields = {
        "name": "made/up",
        "domain": domain,
        "status": np.array([0, 0, 2], np.int8),
        "values": np.array([1.0, 2.0, np.nan]),
        "costs": np.ones((3, 4), np.float32),
    }
    return Space(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": np.array([0, 0, 9], np.int8)}, "made/up: configuration 3: 9 is no status"),
        ({"status": np.array([1, 2, 3], np.int8), "values": np.full(3, np.nan)}, "all 3 configurations failed"),
        ({"values": np.array([1.0, np.nan, np.nan])}, "configuration 2 breaks a rule: its objective is a positive"),
        ({"values": np.array([1.0, 2.0, 3.0])}, "configuration 3 breaks a rule: one that failed has no objective"),
        ({"costs": -np.ones((3, 4), np.float32)}, "configuration 1 breaks a rule: its costs are seconds, 0 or more"),
        ({"costs": np.zeros((3, 4), np.float32)}, "an evaluation costs more than nothing"),
        ({"samples": np.ones((3, 2), np.float32)}, "it has samples if and only if it was measured"),
    ],
)
def test_a_space_that_breaks_a_rule_is_refused_with_its_configuration(changes, message):
    with pytest.raises(SpaceError, match=message):
        small(**changes)


def test_a_space_can_not_be_changed(space):
    for array in (space.values, space.costs, space.samples, space.losses, space.domain.configurations):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_failures_are_counted_by_kind(space):
    assert space.failures == {"compile": 117, "runtime": 33}
    assert int((space.status == Status.COMPILE).sum()) == 117


# ---- names


@pytest.fixture
def folder(tmp_path):
    for application, devices in (("convolution", ("A100", "W6600")), ("gemm", ("A100",))):
        (tmp_path / application).mkdir()
        for device in devices:
            (tmp_path / application / f"{device}.npz").write_bytes(compact.dump(synthetic(), samples=0))
    return tmp_path


def test_spaces_are_found_by_name_in_a_folder(folder):
    assert suite.names(folder) == ["convolution/A100", "convolution/W6600", "gemm/A100"]
    assert suite.names(folder, "gemm") == ["gemm/A100"]
    assert len(suite.resolve("convolution", folder=folder)) == 2
    assert suite.load("gemm/A100", folder).name == "gemm/A100"


def test_a_folder_stands_for_the_recordings_in_it(folder, cache):
    (folder / "pnpoly_RTX3090.json.gz").write_bytes(gzip.compress(json.dumps(cache).encode()))
    (folder / "pnpoly_T1.json").write_text("{}")
    (folder / "pnpoly_RTX3090_T4.json").write_text("{}")
    found = [space.name for space in suite.resolve(str(folder))]
    assert sorted(found) == ["convolution/A100", "convolution/W6600", "gemm/A100", "pnpoly/RTX3090"]
    (folder / "empty").mkdir()
    with pytest.raises(SpaceError, match=r"empty: no application_device\.json"):
        suite.resolve(str(folder / "empty"))


def test_the_split_of_what_ships_has_spaces_of_all_applications_on_both_sides():
    train, test = (suite.split(suite.names(), part) for part in suite.PARTS)
    assert {name.split("/")[0] for name in train} == {name.split("/")[0] for name in test}


def test_splits_go_by_device_or_by_application(folder):
    names = suite.names(folder)
    assert suite.split(names, "train") == ["convolution/A100", "gemm/A100"]
    assert suite.split(names, "test") == ["convolution/W6600"]
    assert suite.split(names, "train", "application") == ["convolution/A100", "convolution/W6600"]
    assert suite.split(names, "test", "application") == ["gemm/A100"]
    assert len(suite.resolve("convolution", "test", folder)) == 1


@pytest.mark.parametrize("by", suite.HELD_OUT)
def test_no_space_is_on_both_sides_of_a_split(folder, by):
    names = suite.names(folder)
    train, test = (suite.split(names, part, by) for part in suite.PARTS)
    assert not set(train) & set(test) and sorted(train + test) == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("convolution/A10",), "no space is called 'convolution/A10'; did you mean convolution/A100?"),
        ((None,), "space= names a tuning space: convolution/A100, convolution/W6600, gemm/A100; synthetic<seed>"),
        (("synthetic0/west",), "a synthetic space is named as synthetic0/east, on north, south, east"),
        (("nothing.npz",), "nothing.npz: No such file"),
        (("gemm", "test"), "none of gemm/A100 is in split 'test'"),
    ],
)
def test_an_unknown_space_is_refused_with_what_there_is(folder, arguments, message):
    with pytest.raises(SpaceError, match=message):
        suite.resolve(*arguments, folder=folder)


def test_other_words_for_a_split_are_refused(folder):
    with pytest.raises(ValueError, match="split is one of train, test, not 'both'"):
        suite.split(["a/b"], "both")
    with pytest.raises(ValueError, match="a split goes by device or application, not by 'month'"):
        suite.split(["a/b"], "test", "month")
