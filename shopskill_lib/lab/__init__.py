"""What only simulation can know: rewards drawn from planted effects, and the truth behind them."""
