"""`bench validate`: the simulator held against measured tables.

A table becomes rows (`table`), a row a deployment (`deployment`, by the rules of `mapping.toml`) under a load (`load`), a
deployment under a load a point that can be simulated (`points`, `simulate`), and a point's figures are compared with the
measured cells that share it (`cells`). `validate` is the whole of it.
"""
