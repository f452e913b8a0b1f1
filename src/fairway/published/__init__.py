"""What exists only to repeat published simulators: their rounds and epochs, their solver, their forms of policies.

Two places of the product load it, and only where `--rules` or a knob asks for it: `policies.registry.make_policy`
and `simulator.engines`.
"""
