"""For authors of policies and engines: builders, a fake engine and the contract suite `check_policy`."""
