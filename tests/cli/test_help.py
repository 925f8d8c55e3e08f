"""The front of the command line: help, examples, JSON, exit codes, errors, completion, and what is imported for it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import typer

from perron import design, networks
from perron._registry import lookup, options_model, unknown
from perron._storage.jsonable import to_json, to_jsonable
from perron.algorithms import ALGORITHMS
from perron.algorithms.codecs import CODECS
from perron.cli import _names, options
from perron.cli import main as cli
from perron.cli import study as study_cli
from perron.cli.app import EXIT_CODES, Command, Group, examples, prose
from perron.clock import presets
from perron.data import datasets as data
from perron.data import download as fetch
from perron.errors import PerronError
from perron.networks import topologies
from perron.networks.mixing import RULES
from perron.problems.linear import KINDS
from perron.studies import run
from perron.studies import spec as study
from perron.studies.spec import Study, load

ROOT = typer.main.get_command(cli.app)


def commands(group=ROOT, path=("perron",)):
    """All groups and commands, with the words that call them."""
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


LEAVES = {" ".join(path): command for path, command in commands() if not isinstance(command, Group)}
GROUPS = {" ".join(path): command for path, command in commands() if isinstance(command, Group)}


def ran(capsys, *words, debug=False):
    """Exit code, standard output and standard error of a command, in this process."""
    code = cli._run(list(map(str, words)), debug=debug)
    out, err = capsys.readouterr()
    return code, out, err


def perron(*words, **options):
    command = [sys.executable, "-m", "perron", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **options)


# ---- help


def test_without_a_command_it_shows_what_there_is(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = ran(capsys)
    assert (code, err) == (0, "")
    assert out.index("Try first") < out.index("Look at networks") < out.index("Run studies") < out.index("Train")
    assert "docs/" in out
    assert len(examples(ROOT.help)) == 3
    assert max(map(len, out.splitlines())) <= 80
    for name in ROOT.commands:
        assert re.search(rf"│ {name} +[A-Z]", out), name
    code, out, _ = ran(capsys, "study")
    assert code == 0
    assert "perron study new mine" in out


@pytest.mark.parametrize("path", [*LEAVES, *GROUPS])
@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_and_has_examples(path, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = ran(capsys, *path.split()[1:], "--help")
    assert code == 0
    command = (LEAVES | GROUPS)[path]
    assert isinstance(command, Command | Group)  # of ours, so that its help looks like the others'
    assert f"Usage: {path}" in out
    shown = examples(command.help)
    assert shown
    assert all(line in out.splitlines() for line in (f"  {one}" for one in shown))  # whole, on a line of its own
    assert all(len(line) <= columns for line in out.splitlines() if line.strip() not in shown)
    assert command is ROOT or len(prose(command.help)[0]) <= 64  # one line in the list of commands


@pytest.mark.parametrize("path", [*LEAVES, *GROUPS])
def test_examples_are_right(path):
    """Each is parsed, down to its options; none of them is run."""
    for line in examples((LEAVES | GROUPS)[path].help):
        program, *words = shlex.split(line, comments=True)
        assert program == "perron"
        context, command = None, ROOT
        while isinstance(command, Group) and (words or not command.invoke_without_command):
            context = command.make_context(command.name or "perron", words, parent=context, resilient_parsing=True)
            name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
            assert command is not None, line
        command.make_context(name, words, parent=context)  # raises if it is not usage


def test_options_mean_the_same_everywhere():
    found = {}
    for path, command in LEAVES.items():
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert parameter.help, (path, parameter.name)
                assert parameter.is_flag or parameter.metavar, (path, parameter.name)
                assert parameter.opts[0].startswith("--")
                found.setdefault(parameter.opts[0], {}).setdefault(parameter.metavar, []).append(path)
            else:
                assert parameter.metavar
    odd = {name: kinds for name, kinds in found.items() if len(kinds) > 1}
    # a file or a directory; a study or a directory; a level or a share; nodes or bytes
    assert set(odd) == {"--out", "--from", "--target", "--size"}, odd
    panels = {command.rich_help_panel for command in ROOT.commands.values()}
    assert all(isinstance(panel, str) for panel in panels)  # every command stands in a group of the overview


def test_defaults_are_told(capsys):
    out = " ".join(ran(capsys, "launch", "--help")[1].replace("│", "").split())
    assert "Usage: perron launch [OPTIONS] [SCRIPT [ARGS]]..." in out
    assert "How many nodes to run on this machine (default: 4)." in out
    assert "The number of the first node on this machine (default: 0)." in out
    assert "(default: None" not in out


# ---- JSON


def parsed(text):
    """The document; NaN and infinities, which are not JSON, are refused."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_plain_values():
    given = {"a": np.float64("nan"), "b": (np.arange(2), float("inf")), 3: Path("x"), "d": None, "e": np.bool_(True)}
    assert to_jsonable(given) == {"a": None, "b": [[0, 1], None], "3": "x", "d": None, "e": True}
    assert parsed(to_json(given))["e"] is True


@pytest.fixture
def rates(tmp_path):
    np.savetxt(tmp_path / "rates.csv", np.full((4, 4), 5.0), delimiter=",")
    return tmp_path / "rates.csv"


def told(capsys, *words):
    code, out, err = ran(capsys, *words, "--json")
    assert code == 0, err
    assert out.count("\n") == 1
    assert out.endswith("\n")
    return parsed(out)


def test_json_of_what_there_is(capsys):
    assert [one["name"] for one in told(capsys, "graph", "--list")] == list(topologies.NAMES)
    assert list(told(capsys, "algorithms")) == list(ALGORITHMS)
    listed = told(capsys, "study", "list")
    assert [one["name"] for one in listed] == list(study.shipped())
    assert all(one["title"] and one["about"] for one in listed)
    assert [one["name"] for one in told(capsys, "data", "list")] == ["digits", *data.TITLES]
    assert told(capsys, "data", "fetch", "digits")["official"]


def test_json_of_networks(capsys, rates, tmp_path):
    assert told(capsys, "graph", "ring", "--nodes", 4)["nodes"] == 4
    path = told(capsys, "graph", "star", "--nodes", 3, "--weights", "spanning_trees")
    assert path["nodes"] == 3
    advised = told(capsys, "advise", "ring", "--nodes", 2, "--algorithm", "push_pull", "--noise", 0)
    assert advised["chosen"] == "push_pull"
    assert told(capsys, "design", "ring", "--nodes", 3, "--goal", "sum", "--starts", 1)["goal"] == "sum"
    links = told(capsys, "links", rates, "--degree", 2, "--out", tmp_path / "net.edges")
    assert links["nodes"] == 4
    assert links["slowest"] == 5
    assert len(links["links"]) >= 4
    assert Path(links["out"]).exists()
    assert set(told(capsys, "paper", "theorem", "ring", "--nodes", 3)) == {"printed", "corrected"}
    assert told(capsys, "paper", "check", "--only", "3a")["agree"] == 1


@pytest.mark.processes
def test_json_of_a_study(capsys, tmp_path):
    file, out = tmp_path / "mine.toml", tmp_path / "out"
    assert ran(capsys, "study", "new", file)[0] == 0
    few = ["--set", "nodes=[2,3]", "--set", "trials=2", "--set", "steps=200", "--set", "every=2"]
    checked = told(capsys, "study", "check", file, *few)
    assert checked["runs"] == 2
    assert checked["gradients"] == 2 * 200 * (2 + 3) + 2
    code, text, err = ran(
        capsys,
        "study",
        "run",
        file,
        *few,
        "--set",
        'algorithms=["push_pull","dsgd"]',
        "--out",
        out,
        "--workers",
        1,
        "--json",
    )
    assert code == 3  # dsgd needs doubly stochastic weights
    assert "2 of 4 runs failed: dsgd on exponential(2)" in err
    assert err.splitlines()[-1].startswith("perron: ")
    summary = parsed(text)
    assert summary["runs"] == 4
    assert len(summary["failed"]) == 2
    assert all(Path(path).exists() for path in summary["files"])
    code, text, _ = ran(capsys, "study", "show", out, "--json")
    assert code == 3
    assert parsed(text)["summary"] == summary["summary"]
    drawn = told(capsys, "study", "plot", out)
    assert str(out / "report.md") in drawn["files"]


# ---- exit codes and errors


def test_exit_codes_are_documented(capsys):
    help_text = " ".join(ran(capsys, "--help")[1].split())
    for code, meaning in EXIT_CODES.items():
        assert re.search(rf"│ {code} +{re.escape(meaning.split(':')[0])}", help_text), code


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("grap ring", 2, "There is no command 'grap'; did you mean 'graph'?"),
        ("study rnu demo", 2, "There is no command 'rnu'; did you mean 'run'?"),
        ("graph ring --node 4", 2, "There is no option of perron graph '--node'; did you mean '--nodes'?"),
        ("graph ring --nodes x", 2, "Invalid value for '--nodes'"),
        ("advise", 2, "Missing argument 'NAME|FILE'. See perron advise --help."),
        ("paper check --effort some", 2, "Invalid value for '--effort'"),
        ("graph rign", 1, "There is no topology 'rign'; did you mean 'ring'?"),
        ("graph Ring", 1, "did you mean 'ring'?"),
        ("graph ring --weights unifrom", 1, "There is no weight rule 'unifrom'; did you mean 'uniform'?"),
        (
            "graph random --set probabilty=1",
            1,
            "There is no option of random 'probabilty'; did you mean 'probability'?",
        ),
        ("graph star --weights authors", 1, "There is no released network 'star'"),
        ("advise ring --algorithm pushpull", 1, "There is no algorithm 'pushpull'; did you mean 'push_pull'?"),
        ("advise ring --problem logistc", 1, "There is no problem 'logistc'; did you mean 'logistic'?"),
        ("design ring --goal rats", 1, "There is no goal 'rats'; did you mean 'rate'?"),
        ("paper check --only 77h", 1, "There is no claim '77h'; did you mean '7h'?"),
        ("data fetch minst", 1, "There is no dataset to fetch 'minst'; did you mean 'mnist'?"),
        ("study check dmeo", 1, "There is no study 'dmeo'; did you mean 'demo'?"),
        ("study check demo --set trails=3", 1, "There is no key 'trails'; did you mean 'trials'?"),
        ("study check demo --set problem.bach=3", 1, "There is no option 'bach'; did you mean 'batch'?"),
        ("study check demo --set problem.kind=logistik", 1, "no kind of problem 'logistik'; did you mean 'logistic'?"),
        ("study check demo --set conclusion=speedupp", 1, "no conclusion 'speedupp'; did you mean 'speedup'?"),
        ("study check demo --set nodes.gird=[4]", 1, "no topology of the study's 'gird'; did you mean 'grid'?"),
        ("study check demo --set metrics=grad_norm", 1, "There is no metric 'grad_norm'; did you mean 'grad_norm_"),
        ("study check demo --set weights=lasy", 1, "There is no weight rule 'lasy'; did you mean 'lazy'?"),
        (
            "study check demo --set algorithms=push_pul",
            1,
            "There is no algorithm 'push_pul'; did you mean 'push_pull'?",
        ),
        ("launch nowhere.py", 1, "There is no script nowhere.py"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_with_the_nearest_name(words, code, message, capsys):
    found, out, err = ran(capsys, *shlex.split(words))
    assert (found, out) == (code, "")
    assert message in err
    assert err.startswith("perron: ")
    assert err.count("\n") == 1


def test_an_unknown_name():
    assert lookup("a", {"a": 1}, "letter") == 1
    assert str(unknown("zzz", [], "letter")) == "There is no letter 'zzz'. There are: none."


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyError("lost"), 70, "This is a bug in perron: KeyError: 'lost'. Please report it"),
        (MemoryError(), 1, "does not fit into memory"),
        (OSError(28, "No space left on device", "results/x"), 1, "perron: No space left on device: results/x.\n"),
        (PermissionError(13, "Permission denied"), 1, "perron: Permission denied.\n"),
        (PerronError("two\nlines"), 1, "perron: two lines\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_of_all_kinds(error, code, message, capsys, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(networks, "load_network", fail)
    found, out, err = ran(capsys, "graph", "ring")
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == (1 if message else 0)
    if isinstance(error, Exception) and message:
        found, out, err = ran(capsys, "graph", "ring", debug=True)
        assert (found, out) == (code, "")
        assert "Traceback" in err
        assert message in err


def test_debug_shows_the_traceback_wherever_it_stands():
    wrong = ["study", "new", "/nowhere/at/all"]
    silent = os.environ | {"PERRON_DEBUG": "0"}
    assert "Traceback" not in perron(*wrong, env=silent).stderr
    for words, environment in (
        (["--debug", *wrong], silent),
        ([*wrong, "--debug"], silent),
        (wrong, os.environ | {"PERRON_DEBUG": "1"}),
    ):
        assert "Traceback" in perron(*words, env=environment).stderr


@pytest.mark.processes
def test_the_options_of_a_script_are_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:])\nsys.exit('--fail' in sys.argv)\n")
    done = perron("launch", "--nodes", 1, script, "--debug", "--json", "-n", "3", "--fail")
    assert (done.returncode, done.stdout) == (3, "['--debug', '--json', '-n', '3', '--fail']\n")


def test_a_reader_that_has_seen_enough():
    for words in ("study list", "study list --json"):
        command = f"{shlex.quote(sys.executable)} -m perron {words} | head -c 1"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600, check=False)
        assert (done.stderr, done.returncode) == ("", 0)


def test_a_disk_that_is_full():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "perron", "study", "list", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert done.stderr == "perron: No space left on device.\n"


def test_ctrl_c_is_silent():
    struck = "networks.load_network = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)"
    script = f"import os, signal, sys\nfrom perron import networks\nfrom perron.cli import main as cli\n{struck}\n"
    script += "sys.argv = ['perron', 'graph', 'ring']\ncli.main()"
    command = [sys.executable, "-c", script]
    restore = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **restore)
    assert (done.returncode, done.stderr) == (130, "")


# ---- study new


def test_a_new_study_mentions_every_key_and_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = ran(capsys, "study", "new", "mine")
    assert (code, out) == (0, "")
    assert "perron study run mine.toml" in err
    text = Path("mine.toml").read_text()
    before, after = text.split("[problem]")
    keys = set(re.findall(r"^(?:# )?(\w+) = ", before, re.MULTILINE))
    assert keys == set(Study.model_fields) - {"problem"} - study.INTERNAL
    for kind, made in run.PROBLEMS.items():
        if kind in ("lasso", "softmax"):  # the same options as ridge
            continue
        part = after[after.index(f'kind = "{kind}"') :].split("\n\n")[0]
        assert set(re.findall(r"^(?:# )?(\w+) = ", part, re.MULTILINE)) == {"kind", *options_model(made).model_fields}
    loaded = load("mine.toml")
    assert loaded.name == "mine"
    assert len(loaded.runs) == 3
    assert set(tomllib.loads(text)) < set(Study.model_fields)


def test_values_behind_a_hash_are_defaults_or_valid(tmp_path):
    """Each line that is commented out can be put to use."""
    template = study_cli.TEMPLATE.read_text(encoding="utf-8")
    before, after = template.split("[problem]")
    for key, value in re.findall(r"^# (\w+) = (.*?)(?:  +#.*)?$", before, re.MULTILINE):
        change = tomllib.loads(f"{key} = {value}")
        load("demo", change | ({"conclusion": "topologies"} if key == "until" else {}))
        default = Study.model_fields[key].get_default(call_default_factory=True)
        if key not in (
            "name",
            "horizon",
            "links",
            "precision",
            "until",
            "figure",
            "tune",
            "wire",
            "clock",
        ):  # whose defaults are nothing
            assert change[key] == default or [change[key]] == default, key
    for part in after.split("\n\n"):
        lines = [line.removeprefix("# ") for line in part.splitlines() if re.match(r"(# )?\w+ = ", line)]
        problem = tomllib.loads("\n".join(lines))
        trained = problem["kind"] in ("images", "text")
        more = {"conclusion": "training", "metrics": "loss_mean"} if trained else {}
        load("demo", {"problem": problem} | more)


def test_a_new_study_overwrites_nothing(capsys, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("precious")
    code, _, err = ran(capsys, "study", "new", file)
    assert code == 1
    assert "--force" in err
    assert file.read_text() == "precious"
    assert ran(capsys, "study", "new", file, "--force", "--from", "digits")[0] == 0
    assert load(file).runs == load("digits").runs
    assert ran(capsys, "study", "new", tmp_path / "no" / "where.toml")[0] == 1


# ---- completion


def completed(capsys, monkeypatch, line):
    """What the shell is offered, through the variables that its script sets."""
    words = line.split(" ")
    monkeypatch.setenv("_PERRON_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit) as ended:
        cli._run([], debug=True)
    assert ended.value.code == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("perron gr", ["graph"]),
        ("perron study s", ["show"]),
        ("perron graph exp", ["exponential"]),
        ("perron graph ring --wei", ["--weights"]),
        ("perron graph ring --weights ", [*RULES, "authors", "file"]),
        ("perron advise ring --algorithm push_pull", [name for name in ALGORITHMS if name.startswith("push_pull")]),
        (
            "perron advise ring --problem ",
            [kind for kind in run.PROBLEMS if kind not in {"text", *KINDS} - {"logistic"}],
        ),
        ("perron design ring --goal ", [*design.GOALS, "time"]),
        ("perron study run synth", ["synthetic-speedup"]),
        ("perron study new x --from mnist-", ["mnist-families", "mnist-speedup"]),
        ("perron data fetch ", list(fetch.CHECKSUMS)),
        ("perron study run sub/m", ["sub/mine.toml"]),
    ],
)
def test_completion(line, offered, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.toml").write_text("")
    (tmp_path / "sub" / "mine.txt").write_text("")
    assert completed(capsys, monkeypatch, line) == offered


def test_completion_knows_all_names(tmp_path, monkeypatch):
    assert {name: value for name, value in vars(_names).items() if name.isupper()} == {
        "TOPOLOGIES": tuple(topologies.NAMES),
        "WEIGHT_RULES": tuple(RULES),
        "ALGORITHMS": tuple(ALGORITHMS),
        "GOALS": tuple(design.GOALS),
        "PROBLEMS": tuple(
            kind for kind in run.PROBLEMS if kind not in {"text", *KINDS} - {"logistic"}
        ),  # of perron advise
        "WIRES": tuple(CODECS),
        "PRESETS": tuple(presets.names()),
        "DATASETS": tuple(fetch.CHECKSUMS),
    }
    monkeypatch.chdir(tmp_path)
    assert options.complete_networks("") == list(topologies.NAMES)
    assert options.complete_studies("") == list(study.shipped())
    assert options.complete_files("nowhere/x", (".toml",)) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell, capsys, monkeypatch):
    monkeypatch.setenv("_PERRON_COMPLETE", f"source_{shell}")
    with pytest.raises(SystemExit) as ended:
        cli._run([], debug=True)
    assert ended.value.code == 0
    assert "_PERRON_COMPLETE=complete_" in capsys.readouterr().out


# ---- start-up

SLOW = ["torch", "pandas", "matplotlib", "networkx", "plotly", "pyarrow"]
SLOWER = [*SLOW, "scipy", "numpy"]
SOLVERS = ["scipy.linalg", "scipy.sparse.linalg", "scipy.sparse.csgraph"]


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        ("", [*SLOWER, "pydantic", "rich.markdown", "importlib.metadata"]),
        ("--help", [*SLOWER, "pydantic", "rich.markdown", "importlib.metadata"]),
        ("study run --help", SLOWER),
        ("study list", SLOWER),
        ("study list --json", [*SLOWER, "rich"]),
        ("study new mine", SLOWER),
        ("graph --list --json", [*SLOW, "scipy.spatial", "rich"]),
        ("graph ring --nodes 8", [*SLOW, *SOLVERS, "scipy.spatial"]),
        ("graph ring --nodes 8 --json", [*SLOW, *SOLVERS, "scipy.spatial", "rich"]),
    ],
)
def test_what_is_not_imported(words, absent, tmp_path):
    script = (
        "import sys\nfrom perron.cli import main as cli\n"
        f"code = cli._run({shlex.split(words)!r}, debug=True)\n"
        f"sys.stderr.write(' '.join(name for name in {absent!r} if name in sys.modules))\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    imported = done.stderr if "new" not in words else done.stderr.splitlines()[-1]
    assert not set(absent) & set(imported.split())


@pytest.mark.parametrize("line", ["perron graph ", "perron advise ring --algorithm ", "perron study run "])
def test_completion_imports_nothing_slow(line):
    script = (
        "import sys\nfrom perron.cli import main as cli\ntry:\n    cli._run([], debug=True)\n"
        f"finally:\n    sys.stderr.write(' '.join(name for name in {SLOWER!r} if name in sys.modules))"
    )
    environment = os.environ | {
        "_PERRON_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=600, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_a_study_gets_a_name_that_it_can_have(capsys, tmp_path):
    for name in ("my study", "", "a#b"):
        code, _, err = ran(capsys, "study", "new", f"{tmp_path}/{name}")
        assert code == 1
        assert "A study's name has" in err
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_is_refused_before_the_work(capsys, tmp_path):
    for out in (tmp_path / "nowhere" / "page.md", tmp_path / "page.txt"):
        code, printed, _ = ran(capsys, "paper", "check", "--write", out)
        assert (code, printed) == (1, "")


def test_options_of_a_network_need_one(capsys):
    code, _, err = ran(capsys, "graph", "--nodes", "8")
    assert code == 1
    assert "Which network?" in err
