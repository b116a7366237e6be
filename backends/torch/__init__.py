"""The real engine in plain torch: an executor that runs plans on a model's weights, on any device."""
