"""Questions that are asked at once: the answers of each by itself, after one round trip."""

import pytest
from helpers.distant import Distant
from helpers.round_trips import counted

from ignitetf.errors import ServerError
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.net.common import Question
from ignitetf.tables.catalog import manifest_of, manifest_question, read_manifest
from ignitetf.wire.codes import Feature, OpCode, Status

pytestmark = pytest.mark.node

NO_SUCH_OP = Question(4242, b"", bytes)


@pytest.fixture
def data_set(client, cache_name):
    load_dataset({"A": [1, 2, 3]}, cache_name, client=client, partitions=8)
    return cache_name


def test_answers_are_those_of_each_question(client, data_set):
    questions = [
        client.partitions_question(data_set),
        manifest_question(client, "NO SUCH DATA SET"),
        client.nodes_question,
        client.partitions_question("NO SUCH CACHE"),
        manifest_question(client, data_set),
    ]
    found = client.ask(*questions)
    assert found == [client.ask(one)[0] for one in questions]
    partitions, nothing, nodes, unknown, text = found
    assert (partitions, nothing, unknown) == (client.partition_count(data_set), None, None)
    assert partitions == 8
    assert nodes == client.nodes() != []
    assert manifest_of(client, data_set, text) == read_manifest(client, data_set)
    assert client.ask() == []
    again = client.partitions_question(data_set)
    assert client.ask(again, client.nodes_question, again) == [8, nodes, 8]


def test_one_that_is_refused_does_not_spoil_the_others(client, data_set):
    partitions = client.partitions_question(data_set)
    seen = []
    for questions in ([NO_SUCH_OP, partitions], [partitions, NO_SUCH_OP]):
        with pytest.raises(ServerError) as told:
            client.ask(*questions)
        seen.append(told.value.status)
        forgiving = [
            Question(one.op, one.body, one.read, lambda error: error.status) for one in questions
        ]
        answers = dict(zip((one.op for one in questions), client.ask(*forgiving), strict=True))
        assert answers == {4242: Status.INVALID_OP_CODE, OpCode.QUERY_SQL_FIELDS: 8}
    assert seen == [Status.INVALID_OP_CODE] * 2
    assert client.idle_count > 0  # the connection is as good as before


def test_they_take_one_round_trip(client, data_set, monkeypatch):
    with (
        Distant(client.settings.addresses[0], 0.02) as proxy,
        connect(settings=client.settings.replace(addresses=(proxy.address,))) as far,
        counted(monkeypatch) as trips,
    ):
        far.ask(far.partitions_question(data_set), far.nodes_question, far.nodes_question)
    assert trips.count == 1


def test_a_cluster_that_is_too_old_to_tell_its_nodes(client, data_set, monkeypatch):
    with connect(client.settings.addresses) as old:
        with old.channel() as channel:
            monkeypatch.setattr(channel, "features", Feature(0))
        assert old.idle_count == 1
        assert old.ask(old.nodes_question, old.partitions_question(data_set)) == [[], 8]
