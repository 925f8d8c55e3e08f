"""Texts of network files that must be refused."""

BAD = {
    "letters.edges": ("0 1\n1 x\n", "letters.edges:2: 'x' is not a node"),
    "column.edges": ("0 1\n1\n", "column.edges:2: a line is 'source target'"),
    "mixed.edges": ("0 1 2.0\n1 0\n", "mixed.edges:2: a line is 'source target'"),
    "nan.edges": ("0 1 nan\n", "nan.edges:1: a weight is finite and not negative; got 'nan'"),
    "minus.edges": ("0 1 -3\n", "minus.edges:1: a weight is finite and not negative; got '-3'"),
    "word.edges": ("0 1 heavy\n", "word.edges:1: 'heavy' is not a number"),
    "unknown.edges": ("# nodes: 3\n0 3\n", "unknown.edges:2: unknown node 3; the file says there are 3"),
    "negative.edges": ("0 -1\n", "negative.edges:1: '-1' is not a node"),
    "empty.edges": ("", "empty.edges is empty"),
    "comments.edges": ("# nothing\n", "comments.edges holds no edges"),
    "labels.edges": ("# labels: paris\n0 1\n", "labels.edges:1: labels are a JSON list"),
    "few.edges": ('# labels: ["a"]\n0 1\n', "few.edges: 2 nodes need 2 different labels"),
    "ragged.csv": ("1,0\n1\n", "ragged.csv:2: a matrix with 2 rows needs 2 columns; this row has 1"),
    "wide.csv": ("1,0,1\n0,1,1\n", "wide.csv:1: a matrix with 2 rows needs 2 columns; this row has 3"),
    "text.csv": ("1,0\nx,1\n", "text.csv:2: 'x' is not a number"),
    "nan.csv": ("1,nan\n0,1\n", "nan.csv:1: a weight is finite"),
    "names.csv": (",a,b\na,1,0\nc,0,1\n", "names.csv:3: row 'c' stands where the name 'b' of column 2"),
    "norows.csv": (",a,b\n", "norows.csv holds names but no rows"),
    "quote.csv": ('1,"0\n0,1', "not a CSV table"),
    "empty.csv": (" \n", "empty.csv is empty"),
    "cut.graphml": ("<graphml><graph>", "cut.graphml:1: not well-formed XML"),
    "other.graphml": ("<html></html>", "not GraphML that can be read"),
    "bomb.graphml": ('<!DOCTYPE x [<!ENTITY a "aa">]><graphml>&a;</graphml>', "declares a document type or entities"),
    "nan.graphml": (
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="w" for="edge" attr.name="weight" '
        'attr.type="double"/><graph edgedefault="directed"><node id="a"/><edge source="a" target="a"><data key="w">nan'
        "</data></edge></graph></graphml>",
        "edge a -> a: a weight is finite",
    ),
    "nothing.graphml": (
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed"/></graphml>',
        "holds no nodes",
    ),
    "text.npz": ("not a zip", "not an .npz file that can be read"),
}  # fmt: skip


GRAPHML = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="{}">{}</graph>{}</graphml>'
