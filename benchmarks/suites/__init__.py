"""The common parts of benchmarks with several cases: command line, load, figures with goals."""
