"""What is kept between processes: built kernels, and programs under the graphs they are of."""
