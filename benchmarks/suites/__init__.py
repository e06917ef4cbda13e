"""What benchmarks with several cases share: command line, load, figures with goals."""
