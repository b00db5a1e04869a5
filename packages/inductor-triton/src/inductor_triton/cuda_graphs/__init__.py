"""Records host programs as CUDA graphs, and replays them while their conditions hold."""
