import pytest

from workloads.errors import InputError
from workloads.readers.burstgpt import read_burstgpt

TEXT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,276,693,API log
185,ChatGPT,0,0,0,API log
206,ChatGPT,1360,0,1360,Conversation log
"""


def test_failed_rows_are_dropped_with_a_note(file):
    traffic = read_burstgpt(file("b.csv", TEXT))
    assert traffic.arrival.tolist() == [5, 45, 118]
    assert traffic.output_tokens.tolist() == [18, 230, 276]
    assert "dropped 2 failed requests (0 response tokens)" in traffic.notes


def test_filters(file):
    assert read_burstgpt(file("b.csv", TEXT), model="GPT-4").input_tokens.tolist() == [417]
    assert len(read_burstgpt(file("b.csv", TEXT), log_type="Conversation log")) == 2
    with pytest.raises(InputError, match=r"unknown Model 'GPT4'.*did you mean"):
        read_burstgpt(file("b.csv", TEXT), model="GPT4")


def test_an_answer_to_nothing_is_an_error(file):
    with pytest.raises(InputError, match=r"b\.csv:7, column Request tokens: must be at least 1"):
        read_burstgpt(file("b.csv", TEXT + "300,ChatGPT,0,5,5,API log\n"))


def test_all_failed(file):
    with pytest.raises(InputError, match=r"no row is left"):
        read_burstgpt(file("b.csv", TEXT.splitlines()[0] + "\n1,ChatGPT,5,0,5,API log\n"))
