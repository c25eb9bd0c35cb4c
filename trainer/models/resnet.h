#pragma once

#include "trainer/models/model.h"

namespace psring {

// Residual networks (He et al. 2016) for small pictures, with the names and initial weights of torchvision's:
// a 3x3 convolution with stride 1 and no pooling come first, as usual for CIFAR.
ModelRow::Make ResNet18(const ModelSize& size, double);
ModelRow::Make ResNet50(const ModelSize& size, double);

}  // namespace psring
