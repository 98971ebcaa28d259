"""The typed program runs; that its types hold is for basedpyright to check."""


def test_the_typed_program_runs(torch):
    import usage

    usage.numbers(usage.geometries())
    usage.training()
