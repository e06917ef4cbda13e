"""A coverage-guided fuzzer of the compiled parsers, each compared with its reference in Python: ``make fuzz``."""
