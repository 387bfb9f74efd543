"""Hints name what is like a name that is not there, whatever its case."""

from ignitetf.spelling import did_you_mean, nearest


def test_the_most_similar_come_first_as_they_are_written():
    assert nearest("mnist", ["MNIST_TEST", "Mnist", "CIFAR"]) == ["Mnist", "MNIST_TEST"]
    assert nearest("mnist", ["MNIST_TEST", "Mnist"], 1) == ["Mnist"]
    assert nearest("mnist", []) == []


def test_a_hint_asks_for_them_or_says_something_else():
    known = ["train", "trains", "test"]
    assert did_you_mean("TRIAN", known) == "did you mean train?"
    assert did_you_mean("trian", known, count=2) == "did you mean train or trains?"
    assert did_you_mean("trian", known, form="-{}".format) == "did you mean -train?"
    assert did_you_mean("xyz", known, "they are listed") == "they are listed"
    assert did_you_mean("xyz", known) is None
