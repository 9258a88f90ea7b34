import pytest

from frozenprobe.errors import DataError
from frozenprobe.tasks import load_custom

GOOD = {
    "name": '"urgency"',
    "train": '"train.csv"',
    "evaluation": '"dev.csv"',
    "columns": '["subject", "body"]',
    "label_column": '"urgent"',
    "label_type": '"classification"',
}
TRAIN = "subject,body,urgent\na,b,yes\nc,d,no\ne,f,yes\n"


@pytest.fixture
def task(tmp_path):
    (tmp_path / "train.csv").write_text(TRAIN)
    (tmp_path / "dev.csv").write_text("subject,body,urgent\ng,h,no\ni,j,yes\n")

    def describe(**changes):
        lines = [f"{key} = {value}" for key, value in (GOOD | changes).items() if value is not None]
        path = tmp_path / "task.toml"
        path.write_text("\n".join(lines))
        return path

    return describe


def test_a_task_of_ones_own(task):
    data = load_custom(task(title='"Urgent?"', metrics='["f1", "accuracy"]'))
    assert (data.spec.suite, data.spec.title, data.spec.classes) == ("custom", "Urgent?", ("no", "yes"))
    assert data.spec.metrics == ("f1", "accuracy")
    assert (data.train.texts, data.train.pairs) == (["a", "c", "e"], ["b", "d", "f"])
    assert data.train.labels.tolist() == [1, 0, 1]
    assert data.evaluations[0].labels.tolist() == [0, 1]
    assert data.subset is None


def test_the_revision_follows_the_data(task, tmp_path):
    before = load_custom(task()).revision
    assert load_custom(task()).revision == before
    (tmp_path / "dev.csv").write_text("subject,body,urgent\ng,h,yes\ni,j,no\n")
    assert load_custom(task()).revision != before


def test_several_evaluation_splits_and_declared_class_order(task, tmp_path):
    (tmp_path / "other.csv").write_text("subject,body,urgent\nk,l,yes\nm,n,no\n")
    data = load_custom(task(evaluation='{near = "dev.csv", far = "other.csv"}', classes='["yes", "no"]'))
    assert [split.name for split in data.evaluations] == ["near", "far"]
    assert data.train.labels.tolist() == [0, 1, 0]


def test_numbers_as_classes_are_names_not_positions(task, tmp_path):
    (tmp_path / "train.csv").write_text("subject,body,urgent\na,b,10\nc,d,2\ne,f,1\n")
    (tmp_path / "dev.csv").write_text("subject,body,urgent\na,b,1\nc,d,2\n")
    data = load_custom(task())
    assert data.spec.classes == ("1", "2", "10")
    assert data.train.labels.tolist() == [2, 1, 0]
    (tmp_path / "dev.csv").write_text("subject,body,urgent\na,b,0\nc,d,2\n")
    with pytest.raises(DataError, match="row 0: '0' is not a label; allowed are 1, 2, 10"):
        load_custom(task())


def test_minus_one_is_no_label_unless_declared(task, tmp_path):
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text("subject,body,urgent\na,b,-1\nc,d,1\n")
    with pytest.raises(DataError, match=r"split train .*1 of 2 rows have no label"):
        load_custom(task())
    assert load_custom(task(classes='["-1", "1"]')).train.labels.tolist() == [0, 1]


def test_regression_has_no_limits_of_its_own(task, tmp_path):
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text("subject,body,urgent\na,b,-1\nc,d,17.5\n")
    data = load_custom(task(label_type='"regression"', columns='["subject"]'))
    assert data.train.labels.tolist() == [-1.0, 17.5]
    assert data.train.pairs is None
    assert data.spec.metrics == ("pearson", "spearman")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": '"accuracy"'}, "unknown key metric; allowed are name, title, train, evaluation, columns"),
        ({"name": '"cola"'}, "name of a published task"),
        ({"title": '"STS-B"'}, "name of a published task"),
        ({"name": '"../evil"'}, "name: String should match pattern"),
        ({"name": None}, "name: Field required"),
        ({"columns": '["a", "b", "c"]'}, "columns: List should have at most 2"),
        ({"columns": '"subject"'}, "columns: Input should be a valid list"),
        ({"label_type": '"ranking"'}, "'classification' or 'regression'"),
        ({"label_column": '"body"'}, "must all be different"),
        ({"metrics": '["pearson"]'}, "unknown metric 'pearson' for classification; allowed are accuracy, f1, matthews"),
        ({"metrics": '["accuracy", "accuracy"]'}, "a metric is named twice"),
        ({"classes": '["yes", "yes"]'}, "a class is named twice"),
        ({"classes": '["yes", "no"]', "label_type": '"regression"'}, "a regression task has no classes"),
        ({"classes": '["yes", "perhaps"]'}, "row 1: 'no' is not a label; allowed are yes, perhaps"),
        ({"classes": '["yes", "no", "perhaps"]', "metrics": '["f1"]'}, "f1 is defined for two classes"),
        ({"train": '"absent.csv"'}, r"split train: no file .*absent\.csv"),
        ({"evaluation": '"train.csv"'}, "is the train file itself"),
        ({"evaluation": '{train = "dev.csv"}'}, "cannot be called train"),
        ({"evaluation": "{}"}, "evaluation names no file"),
        ({"train": '"train.xlsx"'}, "no file|unknown kind of file"),
        ({"name": "yes"}, "not a valid TOML file"),
    ],
)
def test_wrong_descriptions_say_what_to_do(task, changes, message):
    path = task(**changes)
    with pytest.raises(DataError, match=message) as caught:
        load_custom(path)
    assert "\n" not in str(caught.value)


def test_no_description(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        load_custom(tmp_path / "absent.toml")
