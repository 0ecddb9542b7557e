"""A judge with its backbone in its folder, quantized if wanted, whose scores were compared before it appeared."""
