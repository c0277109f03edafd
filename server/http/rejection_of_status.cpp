#include "server/http/rejection_of_status.h"

namespace lockstep {

HttpRejection rejection_of_status(int status) {
  switch (status) {
    case 400:
      return HttpRejection::kMalformed;
    case 401:
    case 403:
      return HttpRejection::kKey;
    case 404:
    case 405:
      return HttpRejection::kUnknown;
    case 413:
    case 414:
    case 431:
      return HttpRejection::kTooLarge;
    case 415:
      return HttpRejection::kEncoding;
    case 429:
      return HttpRejection::kLimit;
    case 503:
      return HttpRejection::kBusy;
    default:
      return HttpRejection::kProtocol;
  }
}

}  // namespace lockstep
