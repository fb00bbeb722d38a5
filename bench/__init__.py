"""The benchmarks: `python -m bench` measures Siltstone beside its peers on this machine."""
