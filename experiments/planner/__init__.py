"""`bench plan`: the cheapest deployment that serves some traffic within an SLO.

`question` reads what is asked, `candidates` lists what could serve it, `bounds` rules out by arithmetic what cannot, `search`
simulates the rest, `plan` puts it together, `quantization` says which weights suit which batch, `emit` writes launch
commands. `reports` shows nothing of it: `experiments.cli.plan_show` does.
"""
