/** As much of Swagger UI as we use; the package brings no types. */

declare module "swagger-ui-dist/swagger-ui-es-bundle.js" {
  export default function SwaggerUI(options: {
    dom_id: string;
    url: string;
    deepLinking: boolean;
    validatorUrl: string | null;
  }): unknown;
}

declare module "swagger-ui-dist/swagger-ui.css";
