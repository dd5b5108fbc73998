"""Bad files: configuration, tables, raw files, plug-ins, published numbers, results. Each should be one line, exit 1 or
2, nothing written."""

from __future__ import annotations

from collections.abc import Iterator

Files = dict[str, bytes | str]
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
YAML = {
    "empty": "",
    "a list": "- 1\n",
    "a word": "x\n",
    "an open bracket": "title: [\n",
    "not UTF-8": b"title: \xff\xfe\n",
    "a NUL": b"title: \0\n",
    "a tab": "title:\n\t- x\n",
    "a key twice": "title: a\ntitle: b\n",
    "an unknown alias": "title: *x\n",
    "an alias bomb": BOMB,
    "an alias of itself": "title: &a [*a]\n",
    "deep nesting": "title: " + "[" * 5000 + "\n",
    "code": "title: !!python/object/apply:os.system [x]\n",
    "the environment": "title: ${oc.env:HOME}\n",
    "an unknown interpolation": "title: ${nope}\n",
    "an unknown key": "titel: x\n",
    "a number as key": "1: x\n",
    "its own base": "defaults: [{name}, _self_]\n",
    "an unknown base": "defaults: [nope, _self_]\n",
    "bases that are no list": "defaults: nope\n",
    "bases that are no names": "defaults: [[constant], _self_]\n",
    "bases without its own keys": "defaults: []\n",
    "another name": "name: other\n",
    "two documents": "title: a\n---\ntitle: b\n",
}
USED = {
    "method/linear": ("fit", "method=linear", "dataset=mine", "budget=smoke"),
    "dataset/mine": ("data", "prepare", "mine"),
    "protocol/common": ("plan",),
    "budget/quick": ("plan",),
    "trainer/cpu": ("plan",),
    "study/default": ("plan",),
    "paper/rossi2021": ("papers",),
}
ENTRY = """title: Raw
task: {task}
source: {{kind: {kind}, targets: [{targets}], files: [{files}]{source}}}
rows: {rows}
columns: {columns}
md5: null
private: true
{more}
"""
DEFAULTS = {
    "task": "regression",
    "kind": "table",
    "targets": "y",
    "files": "raw.csv",
    "source": "",
    "rows": "3",
    "columns": "2",
    "more": "",
}
GOOD = "1,2,0\n3,4,1\n5,6,0\n"
RAW: dict[str, tuple[dict[str, str], Files]] = {
    "no item": ({"kind": "sklearn", "files": ""}, {}),
    "unknown item of sklearn": ({"kind": "sklearn", "files": "", "source": ", item: diabets"}, {}),
    "unknown item of mlxtend": ({"kind": "mlxtend", "files": "", "source": ", item: bostn"}, {}),
    "unknown generator": ({"kind": "simulated", "files": "", "source": ", item: bumps"}, {}),
    "unknown kind": ({"kind": "csv"}, {}),
    "no files": ({"files": ""}, {}),
    "file that is absent": ({}, {}),
    "file outside": ({"files": "../../raw.csv"}, {}),
    "absolute file": ({"files": "/etc/passwd"}, {}),
    "a folder as file": ({"files": "mine"}, {}),
    "no separator": ({"source": ", separator: ''"}, {"raw.csv": GOOD}),
    "long separator": ({"source": ", separator: '::'"}, {"raw.csv": GOOD}),
    "empty": ({}, {"raw.csv": ""}),
    "blank lines": ({}, {"raw.csv": "\n\n\n"}),
    "text": ({}, {"raw.csv": GOOD.replace("4", "four")}),
    "NaN": ({}, {"raw.csv": GOOD.replace("4", "nan")}),
    "infinity": ({}, {"raw.csv": GOOD.replace("4", "inf")}),
    "1e999": ({}, {"raw.csv": GOOD.replace("4", "1e999")}),
    "1_0": ({}, {"raw.csv": GOOD.replace("4", "1_0")}),
    "digits of another script": ({}, {"raw.csv": GOOD.replace("4", "٤")}),
    "a decimal comma": ({}, {"raw.csv": GOOD.replace("4", '"4,5"')}),
    "hexadecimal": ({}, {"raw.csv": GOOD.replace("4", "0x4")}),
    "a short row": ({}, {"raw.csv": "1,2,0\n3,4\n5,6,0\n"}),
    "a long row": ({}, {"raw.csv": "1,2,0\n3,4,1,1\n5,6,0\n"}),
    "an open quote": ({}, {"raw.csv": '1,2,0\n"3,4,1\n5,6,0\n'}),
    "latin-1": ({}, {"raw.csv": b"1,2,0\n\xe9,4,1\n5,6,0\n"}),
    "UTF-16": ({}, {"raw.csv": GOOD.encode("utf-16")}),
    "NUL": ({}, {"raw.csv": b"1,2,0\n\0,4,1\n5,6,0\n"}),
    "unknown target": ({"targets": "z", "source": ", names: [a, b, y]"}, {"raw.csv": GOOD}),
    "too few names": ({"source": ", names: [a, y]"}, {"raw.csv": GOOD}),
    "a name twice": ({"source": ", names: [a, a, y]"}, {"raw.csv": GOOD}),
    "unknown dropped column": ({"more": "drop: [z]"}, {"raw.csv": GOOD}),
    "dropped target": ({"more": "drop: [y]"}, {"raw.csv": GOOD}),
    "unit of an unknown column": ({"more": "units: {z: m}"}, {"raw.csv": GOOD}),
    "binary with three classes": ({"task": "binary", "more": "classes: ['0', '1', '2']"}, {"raw.csv": GOOD}),
    "binary without classes": ({"task": "binary"}, {"raw.csv": GOOD}),
    "multiclass with one": ({"task": "multiclass", "more": "classes: ['0']"}, {"raw.csv": GOOD}),
    "regression with classes": ({"more": "classes: ['0', '1']"}, {"raw.csv": GOOD}),
    "unknown label": ({"task": "binary", "more": "classes: ['0', '2']"}, {"raw.csv": GOOD}),
    "counts that are none": ({"task": "counts"}, {"raw.csv": GOOD.replace("1\n", "-1\n")}),
    "half a count": ({"task": "counts"}, {"raw.csv": GOOD.replace("1\n", "0.5\n")}),
    "rows left out that are not there": ({"source": ", leave_out: [9]"}, {"raw.csv": GOOD}),
    "all rows left out": ({"source": ", leave_out: [0, 1, 2]"}, {"raw.csv": GOOD}),
    "other rows": ({"rows": "4"}, {"raw.csv": GOOD}),
    "other columns": ({"columns": "3"}, {"raw.csv": GOOD}),
    "no rows wanted": ({"rows": "0"}, {"raw.csv": GOOD}),
    "other mean": ({"more": "expect: {target_mean: [0.9]}"}, {"raw.csv": GOOD}),
    "wrong mean": ({"more": "expect: {target_mean: [x]}"}, {"raw.csv": GOOD}),
    "not gzipped": ({"files": "raw.csv.gz"}, {"raw.csv.gz": GOOD}),
    "not bz2": ({"files": "raw.csv.bz2"}, {"raw.csv.bz2": GOOD}),
    "not xz": ({"files": "raw.csv.xz"}, {"raw.csv.xz": GOOD}),
    "not ARFF": ({"source": ", header: attributes"}, {"raw.csv": GOOD}),
    "ARFF without data": ({"source": ", header: attributes"}, {"raw.csv": "@attribute a real\n"}),
    "not Excel": ({"kind": "excel", "files": "raw.xlsx"}, {"raw.xlsx": GOOD}),
    "not old Excel": ({"kind": "excel", "files": "raw.xls"}, {"raw.xls": GOOD}),
    "not R": ({"kind": "r", "files": "raw.rda"}, {"raw.rda": GOOD}),
    "text as IDX": ({"kind": "idx", "files": "a, b"}, {"a": GOOD, "b": GOOD}),
    "one IDX file": ({"kind": "idx", "files": "a"}, {"a": b"\0\0\x08\x01\0\0\0\x01\0"}),
    "short IDX": ({"kind": "idx", "files": "a, b"}, {"a": b"\0\0\x08\x03\0\0", "b": b"\0\0\x08\x01"}),
    "IDX of other lengths": (
        {"kind": "idx", "files": "a, b"},
        {"a": b"\0\0\x08\1\0\0\0\1\0", "b": b"\0\0\x08\1\0\0\0\2\0\0"},
    ),
    "not svmlight": ({"kind": "svmlight", "files": "a", "more": "train_rows: 3"}, {"a": GOOD}),
    "svmlight without its size": ({"kind": "svmlight", "files": "a"}, {"a": "1 1:2\n"}),
    "svmlight beyond its columns": ({"kind": "svmlight", "files": "a", "more": "train_rows: 1"}, {"a": "1 99:2\n"}),
    "not an archive of flights": ({"kind": "airline", "files": "a.npz", "targets": "delay"}, {"a.npz": GOOD}),
    "one table of flights": ({"kind": "airline", "files": "a.csv", "targets": "delay"}, {"a.csv": GOOD}),
    "no flights": ({"kind": "airline", "files": "a.csv, b.csv", "targets": "delay"}, {"a.csv": GOOD, "b.csv": GOOD}),
    "two targets of flights": (
        {"kind": "airline", "files": "a.csv, b.csv", "targets": "delay, y"},
        {"a.csv": "", "b.csv": ""},
    ),
}
ADD: dict[str, tuple[bytes | str, tuple[str, ...]]] = {
    "empty": ("", ()),
    "only a header": ("a,y\n", ()),
    "no such target": ("a,z\n1,2\n2,3\n", ()),
    "no inputs": ("y\n1\n2\n3\n", ()),
    "no name": (",y\n1,2\n2,3\n", ()),
    "name twice": ("a,a,y\n1,1,2\n2,2,3\n", ()),
    "ragged": ("a,y\n1,2\n2\n", ()),
    "text": ("a,y\nred,2\n2,3\n", ()),
    "empty cell": ("a,y\n,2\n2,3\n", ()),
    "one row": ("a,y\n1,2\n", ()),
    "latin-1": (b"a,y\n\xe9,2\n", ()),
    "text target": ("a,y\n1,x\n2,y\n3,z\n", ("--task", "regression")),
    "one class": ("a,y\n1,x\n2,x\n", ()),
    "1_0": ("a,y\n1_0,2\n2,3\n3,4\n", ()),
    "three classes": ("a,y\n1,x\n2,y\n3,z\n", ("--task", "binary")),
    "dropped target": ("a,b,y\n1,1,2\n2,2,3\n", ("--drop", "y")),
    "dropped unknown": ("a,y\n1,2\n2,3\n", ("--drop", "z")),
    "unknown category": ("a,y\n1,2\n2,3\n", ("--categorical", "z")),
    "all missing": ("a,y\n?,2\n?,3\n", ("--missing", "?")),
    "taken name": ("a,y\n1,2\n2,3\n3,4\n", ("--name", "boston")),
    "strange name": ("a,y\n1,2\n2,3\n3,4\n", ("--name", "../x")),
    "negative counts": ("a,y\n1,-2\n2,3\n3,4\n", ("--task", "counts")),
    "unknown task": ("a,y\n1,2\n", ("--task", "rank")),
    "infinite": ("a,y\n1,inf\n2,3\n", ()),
    "NaN": ("a,y\nnan,1\n2,3\n", ()),
}
PREDICT: dict[str, bytes | str] = {
    "empty": "",
    "only a header": "a,b\n",
    "one column": "a\n1\n",
    "other columns": "c,d\n1,2\n",
    "text": "a,b\n1,x\n",
    "hole": "a,b\n1,\n",
    "short row": "a,b\n1\n",
    "long row": "a,b\n1,2,3\n",
    "column twice": "a,a,b\n1,1,2\n",
    "latin-1": b"a,b\n1,\xe9\n",
    "NUL": b"a,b\n1,\0\n",
    "UTF-16": "a,b\n1,2\n".encode("utf-16"),
    "infinite": "a,b\n1,inf\n",
    "NaN": "a,b\n1,nan\n",
    "1_0": "a,b\n1,1_0\n",
    "huge": "a,b\n1,1e308\n",
    "1e999": "a,b\n1,1e999\n",
    "an open quote": 'a,b\n1,"2\n',
    "true": "a,b\n1,true\n",
    "hexadecimal": "a,b\n1,0x10\n",
    "a date": "a,b\n1,2020-01-01\n",
}
CHALLENGE: dict[str, bytes | str] = {
    "empty": "",
    "only a header": "dataset,split,row,mean,sd\n",
    "no row": "dataset,split,mean,sd\nmine,0,1,1\n",
    "text": "dataset,split,row,mean,sd\nmine,0,x,1,1\n",
    "unknown data set": "dataset,split,row,mean,sd\nmien,0,1,1,1\n",
    "unknown split": "dataset,split,row,mean,sd\nmine,99,1,1,1\n",
    "a row that trains": "dataset,split,row,mean,sd\nmine,0,999,1,1\n",
    "too few rows": "dataset,split,row,mean,sd\nmine,0,{row},1,1\n",
    "row twice": "dataset,split,row,mean,sd\nmine,0,{row},1,1\nmine,0,{row},1,1\n",
    "no numbers": "dataset,split,row\nmine,0,{row}\n",
    "latin-1": b"dataset,split,row,mean,sd\n\xe9,0,1,1,1\n",
    "half a split": "dataset,split,row,mean,sd\nmine,0.5,1,1,1\n",
    "all rows, text": "ALL,x,1",
    "all rows, no sd": "ALL,1,0",
    "all rows, negative sd": "ALL,1,-1",
    "all rows, NaN": "ALL,nan,1",
    "all rows, infinite": "ALL,inf,1",
}
HYPER = "from gpbench.hyper import Settings, dataclass, PositiveInt\n\n\n"
CLASS = "@dataclass(frozen=True)\nclass Hyperparameters(Settings):\n"
PLUGINS: dict[str, bytes | str] = {
    "empty": "",
    "a syntax error": "class (\n",
    "no class": "x = 1\n",
    "no Settings": HYPER + "@dataclass\nclass Hyperparameters:\n    a: int = 1\n",
    "a mutable default": HYPER + CLASS + "    a: list = []\n",
    "an unknown name": HYPER + CLASS + "    a: Foo = 1\n",
    "an exception in the body": HYPER + CLASS + "    a: int = 1 // 0\n",
    "an exit in the body": HYPER + CLASS + "    a: int = [][0]\n",
    "a wrong default": HYPER + CLASS + "    a: PositiveInt = -1\n",
    "no default": HYPER + CLASS + "    a: int\n",
    "latin-1": HYPER.encode() + CLASS.encode() + b"    a: str = '\xe9'\n",
    "a NUL": HYPER.encode() + b"\0" + CLASS.encode() + b"    a: int = 1\n",
    "impossible raises": HYPER + CLASS + "    a: int = 1\n\n    def impossible(self, task):\n        return 1 / 0\n",
    "deep nesting": HYPER + "x = " + "(" * 500 + ")" * 500 + "\n",
    "tabs and spaces": "if 1:\n\tx = 1\n        y = 2\n",
    "an unknown base": "import nowhere\n\n" + CLASS.replace("Settings", "nowhere.Settings") + "    pass\n",
}
MODULES = (
    ".mod",
    "",
    "os.path",
    "no.such",
    "..",
    "a b",
    "1",
    "gpbench.methods",
    "gpbench",
    "json",
    "sys",
    "x" * 300,
    "é.x",
)
PRINTED = (
    "source,item,dataset,method_printed,setting,metric_printed,protocol,scale,value,spread,spread_kind,splits,data_sets,"
    "ours_method,ours_metric,factor,study,reason,note\n"
)
LINE = (
    "x2020,Table 1,mine,Linear,,test_mnll,common,original,{value},{spread},{kind},{splits},{sets},"
    "linear,{metric},{factor},,,\n"
)
SOUND = {"value": "1.0", "spread": "", "kind": "", "splits": "1", "sets": "1", "metric": "mnll", "factor": "1"}
PUBLISHED: dict[str, bytes | str] = {
    "empty": "",
    "latin-1": PRINTED.encode() + b"\xe9\n",
    "only another header": "a,b\n1,2\n",
    "a missing column": PRINTED.replace(",note", ""),
    "columns in another order": PRINTED.replace("source,item", "item,source"),
    "UTF-16": PRINTED.encode("utf-16"),
    "NUL": b"\0\0\0",
    "a long line": PRINTED + LINE.format_map(SOUND).replace("\n", ",x,y\n"),
    "the same twice": PRINTED + 2 * LINE.format_map(SOUND),
    **{
        f"{key} {value!r}": PRINTED + LINE.format_map(SOUND | {key: value})
        for key, values in {
            "value": ("abc", "inf", "nan%", "1_0", "1,0", "", "1e999"),
            "spread": ("x", "inf", "1_0"),
            "splits": ("x", "inf"),
            "factor": ("x", "inf"),
            "metric": ("mnl", "MNLL"),
        }.items()
        for value in values
    },
}
DAMAGES: dict[str, bytes | str] = {
    "empty": "",
    "truncated": '{"name": ',
    "a list": "[]",
    "null": "null",
    "not UTF-8": b"\xff\xfe",
    "deep": "[" * 10**5,
}


def cases() -> Iterator[tuple[str, tuple[str, ...], Files]]:
    """What is wrong, the words of a command, and files beside those of a sound project."""
    for item, words in USED.items():
        for what, content in YAML.items():
            if (item, what) == ("trainer/cpu", "empty"):
                continue  # all of it has defaults
            text = content.replace("{name}", item.split("/")[1]) if isinstance(content, str) else content
            yield f"{item}.yaml: {what}", words, {f"conf/{item}.yaml": text}
    for what, (changes, files) in RAW.items():
        entry = ENTRY.format_map(DEFAULTS | changes)
        raw = {f"data/raw/{name}": content for name, content in files.items()}
        yield f"raw file: {what}", ("data", "prepare", "raw"), {"conf/dataset/raw.yaml": entry} | raw
    for what, (content, words) in ADD.items():
        yield f"data add: {what}", ("data", "add", "new.csv", "--target", "y", *words), {"new.csv": content}
    for what, content in PREDICT.items():
        yield f"predict: {what}", ("predict", "linear/mine", "new.csv"), {"new.csv": content}
    for what, content in CHALLENGE.items():
        yield f"challenge: {what}", ("challenge", "theirs.csv"), {"theirs.csv": content}
    for number, (what, content) in enumerate(PLUGINS.items()):
        module, text = f"plugged{number}", "label: P\nmodule: {}\nreference: x\ntasks: [regression]\n"
        files = {f"site/{module}.py": content, "conf/method/plugged.yaml": text.format(module)}
        yield f"plug-in: {what}", ("plan", "--overrides", "methods=[plugged]"), files
    for module in MODULES:
        text = f"label: P\nmodule: '{module}'\nreference: x\ntasks: [regression]\n"
        yield (
            f"plug-in: module {module[:20]!r}",
            ("plan", "--overrides", "methods=[plugged]"),
            {"conf/method/plugged.yaml": text},
        )
    for what, content in PUBLISHED.items():
        yield f"published: {what}", ("report", "scorecard", "RESULTS"), {"published/x2020.csv": content}
    for what, content in DAMAGES.items():
        for command in ("statistics", "scorecard", "table"):
            yield f"study.json {what}: {command}", ("report", command, "RESULTS"), {"RESULTS/study.json": content}
        yield f"scores.parquet {what}", ("report", "table", "RESULTS"), {"RESULTS/scores.parquet": content}
        yield f"plan {what}: collect", ("collect", "NAME"), {"plans/NAME.json": content}
        yield f"plan {what}: verdict", ("verdict", "NAME"), {"plans/NAME.json": content}
        yield f"batch {what}", ("job", "batch.json", "done.json"), {"batch.json": content}
        yield (
            f"prepared data {what}",
            ("fit", "method=linear", "dataset=mine", "budget=smoke", "split=1"),
            {"data/prepared/mine.npz": content},
        )
        yield f"data.dvc {what}", ("data", "fetch", "boston_uci"), {"data.dvc": content}
        yield f"draws {what}", ("references", "lrg_100_2", "--draws", "draws.csv"), {"draws.csv": content}
